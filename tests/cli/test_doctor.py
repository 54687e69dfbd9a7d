"""`kbench doctor` through the command line, on the native module that is here and on made-up ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import kbench.kernels
from kbench.cli import doctor
from kbench.core import InvalidEnvironment
from kbench.measure import host
from kbench.results import Store


@dataclass
class Answer:
    value: float | None
    reason: str = ""


class FakeProbes:
    name = "cpu.avx2"

    def read_bandwidth(self, threads: int) -> Answer:
        return Answer(12.5e9 * threads)

    def arithmetic_peak(self, kind: str, threads: int) -> Answer:
        return Answer(321e9) if kind == "int8" else Answer(None, f"no {kind} here")


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    # Only the probes are made up: a made-up native module would stay in the registry's cache for other tests.
    monkeypatch.setattr(kbench.kernels, "native_probes", lambda *_, **__: FakeProbes())
    monkeypatch.setenv("KBENCH_RESULTS", str(tmp_path / "results"))
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    return app


def run(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["doctor", "--quick", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_has_the_machine_the_ceilings_and_every_implementation(app: typer.Typer) -> None:
    found = json.loads(run(app, "--json"))
    assert next(iter(found)) == "schema" and found["schema"] == "kbench.doctor/1"
    assert found["host_id"] == found["host"]["host_id"] == host().host_id
    assert found["ceilings"]["probes"] == "cpu.avx2"
    assert found["ceilings"]["items"][0]["value"] == 12.5e9
    names = {part["name"] for part in found["implementations"]}
    assert {"torch", "reference", "cpu.scalar", "cpu.avx2", "cpu.avx512_vnni"} <= names
    for part in [*found["implementations"], *found["peers"]]:
        assert part["runnable"] or part["reason"]
    assert "llama-cpp-python" in {part["name"] for part in found["peers"]}


def test_the_support_table_says_what_multiplies_each_storage_type(app: typer.Typer) -> None:
    found = json.loads(run(app, "--json"))
    parts = {part["name"]: part for part in found["implementations"]}
    runnable = {name for name, part in parts.items() if part["runnable"]}
    table = found["support"]
    assert all(set(kernels) == runnable for kernels in table.values())
    assert table["Q4_K"]["torch"] == table["IQ1_M"]["reference"] == "dequantised"
    assert table["F32"]["torch"] == "own"
    if parts["cpu.scalar"]["runnable"]:
        assert table["Q4_K"]["cpu.scalar"] == table["F32"]["cpu.scalar"] == "own"
        # No packed layout: multiplied as floats.
        assert table["IQ2_XXS"]["cpu.scalar"] == table["TQ1_0"]["cpu.scalar"] == "dequantised"
        native = [name for name in parts if name.startswith("cpu.")]
        assert all(parts[name]["tests"] for name in native)
        for kernels in table.values():
            for name, kernel in kernels.items():
                assert kernel in ("own", "dequantised", "", *native)
                assert not kernel.startswith("cpu.") or native.index(kernel) > native.index(name)  # a lower one's
    text = run(app)
    for words in ("Storage types of weights", "dequantised", "Q4_K"):
        assert words in text


def test_what_is_printed_is_stored(app: typer.Typer) -> None:
    found = json.loads(run(app, "--json"))
    records = {record.key: record for record in Store().read()}
    for item in found["ceilings"]["items"]:
        bandwidth = item["name"] == "read_bandwidth"
        key = "read_bandwidth(" if bandwidth else f"arithmetic_peak(kind={item['name']},"
        record = records[f"{key}threads={item['threads']})"]
        assert record.median == item["value"]
        assert (record.unit, record.direction, record.extra["quick"]) == (item["unit"], "higher", True)
        assert record.status == ("ok" if item["value"] is not None else "unsupported")
    assert Path(found["records_path"]).is_file()


def test_a_pipe_gets_plain_lines(app: typer.Typer) -> None:
    text = run(app)
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines() if "GB/s" not in line and "█" not in line)
    for word in ("CPU", "Memory", "GPU", "Measured ceilings", "12.5", "321", "Implementations", "reference", "Peers"):
        assert word in text


def test_without_the_native_module_the_rest_is_shown(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise InvalidEnvironment("the native module is not there")

    monkeypatch.setattr(kbench.kernels, "native_probes", missing)
    found = json.loads(run(app, "--json"))
    assert found["ceilings"] is None and "native module" in found["ceilings_reason"]
    assert found["implementations"] and found["records_path"] is None
    assert "not measured: the native module is not there" in run(app)


def test_a_store_that_cannot_be_written_is_a_warning(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBENCH_RESULTS", "/dev/null/results")
    found = json.loads(run(app, "--json"))
    assert found["ceilings"] is not None
    assert any("cannot be written" in warning for warning in found["warnings"])


def test_whatever_is_built_here(tmp_path: Path) -> None:
    """In a process of its own, with the real probes."""
    command = [sys.executable, "-m", "kbench", "doctor", "--quick", "--json"]
    environment = {**os.environ, "KBENCH_RESULTS": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(result.stdout)
    assert (found["ceilings"] is None) == bool(found["ceilings_reason"])
    runnable = {part["name"] for part in found["implementations"] if part["runnable"]}
    if found["ceilings"] is not None:
        assert found["ceilings"]["probes"] in runnable
        assert all(item["value"] is None or item["value"] > 1e6 for item in found["ceilings"]["items"])
    assert result.stderr == ""


@pytest.mark.parametrize(("cpus", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8")])
def test_cpu_ranges(cpus: tuple[int, ...], text: str) -> None:
    assert doctor._ranges(cpus) == text
