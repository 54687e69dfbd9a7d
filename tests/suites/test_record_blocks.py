"""Recording blocks: fresh processes in rounds, what is thrown away, what a failure becomes; sides are made up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from kbench.core import CheckBroken, Problem
from kbench.measure import Canary, Guard, Side
from kbench.results import track_fields
from kbench.suites import Built, Cell, Recorder

LINEAR = Problem.parse("linear(quant=Q4_K,n=256,k=512,tokens=1)")
CELLS = (Cell(LINEAR, "torch", 1), Cell(LINEAR.replace(tokens=4), "torch", 1))
BUILT = Built("main", "python", "c" * 40, "2026-01-01T00:00:00+00:00")


class Quiet(Guard):
    said: tuple[tuple[str, ...], ...] = ()

    def __init__(self, *said: tuple[str, ...]) -> None:
        self.answers = itertools.chain(said, itertools.repeat(()))

    def restart(self) -> None:
        pass

    def bad(self) -> tuple[str, ...]:
        return next(self.answers)


class FakeSide(Side):
    n_started = 0

    def __init__(self, said: Mapping[str, Any] = {}) -> None:
        super().__init__("main", [])
        self.said, self.on = {"op_spec_hash": "h", "cold": True, "kernel_version": "1", **said}, False

    def launch(self) -> None:
        pass

    def start(self) -> None:
        FakeSide.n_started += not self.on
        self.on = True

    def stop(self) -> None:
        self.on = False

    def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
        assert self.on
        return dict(self.said) if variant == "open" else 0.01


def recorder(guard: Guard | None = None, canaries: Any = None, side: Any = FakeSide, **options: Any) -> Recorder:
    readings = canaries or itertools.repeat(Canary(0.001, 0.01))
    return Recorder(
        BUILT, guard=guard or Quiet(), read_canary=lambda: next(readings), make_side=lambda built: side(), n_samples=3,
        **options,
    )  # fmt: skip


def test_every_round_is_a_fresh_process_over_all_cases() -> None:
    FakeSide.n_started = 0
    records = recorder(n_blocks=3).record(CELLS, None)
    assert FakeSide.n_started == 3
    assert [(r.problem["tokens"], track_fields(r)["index"]) for r in records] == [
        (tokens, index) for index in range(3) for tokens in (1, 4)
    ]
    assert {r.commit for r in records} == {"c" * 40} and {r.samples for r in records} == {(0.01,) * 3}
    assert len({track_fields(r)["run"] for r in records}) == 1
    first = track_fields(records[0])
    assert first["revision"] == "main" and first["canary"] == {"arithmetic": 0.001, "memory": 0.01}
    assert first["commit_time"].startswith("2026") and "conditions" in first


def test_a_disturbed_block_is_taken_again_and_said() -> None:
    (record, *_) = recorder(Quiet(("steal",), ("steal", "heat")), n_blocks=1).record(CELLS, None)
    assert record.status == "ok" and track_fields(record)["discarded"] == ["steal", "steal; heat"]


def test_a_clock_that_changed_within_a_block_spoils_it() -> None:
    slow, fast = Canary(0.0013, 0.01), Canary(0.001, 0.01)
    record = recorder(canaries=iter([fast, slow, slow]), n_blocks=1).record(CELLS[:1], None)[0]
    assert track_fields(record)["discarded"] == ["arithmetic became 30% slower"] and record.status == "ok"


def test_a_machine_that_stays_bad_is_a_record_without_a_time() -> None:
    (record,) = recorder(Quiet(*[("steal",)] * 9), n_blocks=1).record(CELLS[:1], None)
    assert record.status == "skipped" and "bad state" in record.reason and record.samples == ()


def test_what_fails_is_a_record_once_and_the_rest_goes_on() -> None:
    records = recorder(side=lambda: FakeSide({"failed": "wrong", "found": "1 instead of 2"})).record(CELLS, None)
    assert [(r.status, r.reason, r.samples) for r in records] == [("wrong", "1 instead of 2", ())] * 2

    class Dying(FakeSide):
        def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
            raise CheckBroken("its process ended", where="main")

    records = recorder(side=Dying).record(CELLS, None)
    assert [r.status for r in records] == ["crashed"] * 2 and "its process ended" in records[0].reason
