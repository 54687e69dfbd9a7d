"""How the machine stands, and canaries, on made-up files and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.measure import Canary, advice, canary, conditions


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_what_the_machine_tells_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    root = write(
        tmp_path, proc__loadavg="1.50 1.0 0.5 2/300 99", proc__pressure__cpu="some avg10=16.76 avg60=1.0 total=9\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_driver="acpi-cpufreq",
        sys__devices__system__cpu__cpufreq__boost="1",
    )  # fmt: skip
    found = conditions(root)
    assert found["load_1m"] == 1.5 and found["cpu_pressure_percent"] == 16.76
    assert found["variables"]["OPENBLAS_CORETYPE"] == "Haswell"
    assert (found["governor"], found["driver"], found["turbo"]) == ("powersave", "acpi-cpufreq", True)
    assert [text.partition(":")[0] for text in advice(found)] == ["the clock governor is powersave", "turbo is on"]
    assert advice({"governor": "powersave", "driver": "intel_pstate", "turbo": False}) == ()


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert set(conditions(tmp_path)) <= {"variables"} and advice({}) == ()


def test_a_canary_tells_which_part_of_the_machine_changed() -> None:
    before = Canary(0.001, 0.010)
    assert before.changed(before) == Canary(0.00105, 0.0105).changed(before) == ()
    assert Canary(0.0013, 0.010).changed(before) == ("arithmetic became 30% slower",)
    assert Canary(0.001, 0.008).changed(before) == ("memory became 25% faster",)


def test_a_reading_survives_being_stored_and_nothing_else_is_one() -> None:
    reading = canary()
    assert Canary.from_dict(reading.as_dict()) == reading and reading.arithmetic > 0 and reading.memory > 0
    for said in (None, 3, {}, {"arithmetic": "1", "memory": 1.0}, {"arithmetic": 0.0, "memory": 1.0}):
        assert Canary.from_dict(said) is None
