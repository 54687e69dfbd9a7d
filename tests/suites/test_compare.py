"""Comparisons: verdicts from made-up sides, what is refused, and one real run of two processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbench.core import CheckBroken, InvalidEnvironment, Problem, UserError
from kbench.kernels import best, peer_implementation
from kbench.measure import Guard, Plan, Side, judge
from kbench.results import Store
from kbench.suites import Contest, check_names, compare_ops, contests, missing_peers
from kbench.suites.compare_ops import few_looks

LINEAR = Problem.parse("linear(quant=Q4_K,n=256,k=512,tokens=1)")
EXPERTS = Problem.parse(
    "moe_experts(experts=4,top_k=2,n=256,k=256,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=1)"
)
OPENED = {"call_seconds": 0.001, "checksum": 1, "op_spec_hash": "h", "error_share": 0.1, "cold": True,
          "prepared_bytes": 1, "kernel_version": "1"}  # fmt: skip


class FakeSide(Side):
    """Times without a process: ``seconds`` a call, a little more or less each time."""

    def __init__(self, seconds: float, said: Mapping[str, Any] = {}, order: list[str] | None = None) -> None:
        super().__init__("fake", [])
        self.seconds, self.said, self.order = seconds, {**OPENED, **said}, order if order is not None else []
        self.wobble = itertools.cycle([1.0, 1.001, 0.999, 1.002])
        self.n_starts = 0
        self.on = False

    def launch(self) -> None:
        pass

    def start(self) -> None:
        self.n_starts += not self.on
        self.on = True

    def stop(self) -> None:
        self.on = False

    def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
        assert self.on
        self.order.append(variant)
        return dict(self.said) if variant == "open" else self.seconds * next(self.wobble)


class Watching(Guard):
    """Finds the machine in a bad state as often as it is told to."""

    def __init__(self, n_bad: int = 0) -> None:
        self.n_bad = n_bad

    def restart(self) -> None:
        pass

    def bad(self) -> tuple[str, ...]:
        self.n_bad -= 1
        return ("the hypervisor took 40% of the CPU time",) if self.n_bad >= 0 else ()


def run(a: FakeSide, b: FakeSide, store: Store | None = None, **options: Any) -> Any:
    contest = Contest(LINEAR, "cpu.scalar", "torch", 2)
    options = {"guard": Watching(), **options}
    (found,) = compare_ops([contest], store, Plan(), make_side=lambda which, name: (a, b)[which], **options)
    return found


def test_a_slower_side_is_found_and_stored(tmp_path: Path) -> None:
    found = run(FakeSide(0.010), FakeSide(0.030), Store(tmp_path))
    assert found.judgement.verdict.value == "REGRESSED" and found.judgement.ratio == pytest.approx(3, rel=0.01)
    (record,) = Store(tmp_path).read()
    assert record.key.startswith("compare(case=linear(quant=Q4_K,n=256,k=512,tokens=1,threads=2),against=torch")
    assert record.extra["compare"]["verdict"] == "REGRESSED" and record.median == pytest.approx(3, rel=0.01)
    assert record.unit == "ratio" and len(record.samples) == len(record.extra["compare"]["a_seconds"]) == 12


def test_the_same_is_the_same() -> None:
    assert run(FakeSide(0.010), FakeSide(0.010)).judgement.verdict.value == "SAME"


def test_a_small_change_is_confirmed_by_sides_started_anew_and_a_large_one_is_not() -> None:
    small, large = (FakeSide(0.010), FakeSide(0.011)), (FakeSide(0.010), FakeSide(0.030))
    assert run(*small).judgement.verdict.value == "REGRESSED"
    assert run(*large).judgement.verdict.value == "REGRESSED"
    assert [side.n_starts for side in (*small, *large)] == [2, 2, 1, 1]


class LuckySide(FakeSide):
    """A process is as fast as its luck, one after the other; the last of ``luck`` is for all further ones."""

    def __init__(self, seconds: float, luck: list[float]) -> None:
        super().__init__(seconds)
        self.fair, self.luck = seconds, luck

    def start(self) -> None:
        super().start()
        self.seconds = self.fair * self.luck[min(self.n_starts, len(self.luck)) - 1]


def test_a_process_that_is_unlucky_by_a_third_is_no_slower_side() -> None:
    side = LuckySide(0.010, [1.33, 1.0])
    found = run(FakeSide(0.010), side)
    assert not found.judgement.verdict.is_call and side.n_starts >= 2


def test_sides_are_started_anew_as_pairs_grow() -> None:
    """It reaches across an edge of the margin: all looks are used, 24 + 24 + 48 + 64 pairs by other processes."""
    a, b = FakeSide(0.010), FakeSide(0.010)
    b.wobble = itertools.cycle([0.93, 1.02, 1.08, 1.14, 0.97])
    found = run(a, b)
    assert found.judgement.n_pairs == 160 and found.judgement.confirmed_by == ()
    assert [a.n_starts, b.n_starts] == [4, 4]


@pytest.mark.parametrize("field", ["checksum", "op_spec_hash"])
def test_unlike_things_are_refused_by_name(field: str) -> None:
    with pytest.raises(UserError, match=f"the sides differ in {field}"):
        run(FakeSide(0.01), FakeSide(0.01, {field: 2}))


def test_a_wrong_side_is_never_a_fast_one() -> None:
    side = FakeSide(0.001, {"failed": "wrong", "found": "1 at (0, 0) instead of 2"})
    found = run(FakeSide(0.01), side)
    assert found.status == "wrong" and found.judgement is None and found.b_samples == ()
    assert found.reason == "torch: 1 at (0, 0) instead of 2" and side.order == ["open"]


def test_pairs_of_a_bad_state_are_thrown_away_and_taken_again(tmp_path: Path) -> None:
    found = run(FakeSide(0.010), FakeSide(0.030), Store(tmp_path), guard=Watching(2))
    assert found.judgement.verdict.value == "REGRESSED" and len(found.a_samples) == 12
    assert found.extra["discarded"] == ["12 pairs: the hypervisor took 40% of the CPU time"] * 2
    (record,) = Store(tmp_path).read()
    assert record.extra["compare"]["discarded"] == found.extra["discarded"] == list(found.row().extra["discarded"])


def test_a_machine_that_stays_bad_is_an_outcome_without_a_verdict(tmp_path: Path) -> None:
    found = run(FakeSide(0.010), FakeSide(0.030), Store(tmp_path), guard=Watching(100))
    assert found.status == "disturbed" and found.judgement is None and "hypervisor" in found.reason
    assert next(iter(Store(tmp_path).read())).status == "skipped" and found.row().outcome == "disturbed"


def test_revisions_have_names_margins_and_unlike_cases_of_their_own() -> None:
    def compared(b: FakeSide, margin: float) -> Any:
        contest = Contest(LINEAR, "torch", "torch", 2, names=("main", "HEAD"), margin=margin)
        (found,) = compare_ops([contest], None, Plan(), make_side=lambda which, name: (FakeSide(0.01), b)[which],
                               guard=Watching(), about={"commits": ["a", "b"]})  # fmt: skip
        return found

    found = compared(FakeSide(0.011), 0.0)
    row = found.row()
    assert (row.a, row.b, row.implementation, row.verdict, row.margin) == ("main", "HEAD", "torch", "REGRESSED", 0.03)
    assert found.record().problem == {"case": found.key, "against": "HEAD", "baseline": "main"}
    assert found.record().implementation == "torch" and found.record().extra["compare"]["commits"] == ["a", "b"]
    assert compared(FakeSide(0.011), 0.2).row().verdict == "SAME"
    unlike = compared(FakeSide(0.01, {"op_spec_hash": "i"}), 0.0)
    assert unlike.status == "unlike" and "op_spec_hash" in unlike.reason and unlike.record().status == "skipped"
    wrong = compared(FakeSide(0.01, {"failed": "wrong", "found": "1 instead of 2"}), 0.0)
    assert (wrong.status, wrong.reason) == ("wrong", "HEAD: 1 instead of 2")


def test_what_takes_too_long_is_said_with_the_time_that_would_do() -> None:
    side = FakeSide(0.01, {"call_seconds": 100.0})
    found = run(FakeSide(0.01), side, max_seconds=15.0)
    assert found.status == "slow" and "--max-seconds" in found.reason
    assert run(FakeSide(0.01), FakeSide(0.05, {"call_seconds": 1.0})).judgement.n_pairs == 8  # fewer looks


def test_a_slow_shape_among_several_can_get_a_call_at_its_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes as the sides say: the time is over after the first look."""
    now = 0.0

    class Slow(FakeSide):
        def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
            nonlocal now
            now += self.seconds
            return super().ask(variant, request)

    monkeypatch.setattr("time.monotonic", lambda: now)
    sides = Slow(1.0, {"call_seconds": 1.0}), Slow(1.5, {"call_seconds": 1.5})
    wanted = [Contest(LINEAR.replace(tokens=n), "cpu.scalar", "torch", 2) for n in range(1, 8)]
    found = compare_ops(
        wanted, None, Plan(), make_side=lambda which, name: sides[which], max_seconds=15, guard=Watching()
    )  # fmt: skip
    assert {outcome.judgement.verdict.value for outcome in found} == {"REGRESSED"}
    assert {outcome.judgement.n_pairs for outcome in found} == {10}  # 2/2**10 is below 0.05 / 3 / 7, 2/2**9 is not


@pytest.mark.parametrize("n_comparisons", [1, 2, 3, 7, 100])
def test_the_least_p_of_few_looks_makes_a_call(n_comparisons: int) -> None:
    plan = Plan(n_comparisons=n_comparisons)
    plan = replace(plan, looks=few_looks(plan))
    assert judge([0.5 + 0.01 * i for i in range(plan.looks[0])], plan, 0).verdict.is_call


def test_a_side_that_dies_is_an_outcome() -> None:
    class Dying(FakeSide):
        def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
            raise CheckBroken("its process ended", where="torch")

    found = run(FakeSide(0.01), Dying(0.01))
    assert found.status == "crashed" and "its process ended" in found.reason


def test_names_that_cannot_run_say_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_names(("cpuinfer", "torch"))
    with pytest.raises(UserError, match=r"unknown implementation 'marlim'.*did you mean|cpuinfer"):
        check_names(("marlim", "torch"))
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("marlin", "triton"):
        with pytest.raises(InvalidEnvironment, match=f"{name}: no CUDA GPU is here.*pip install"):
            check_names((name, "torch"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidEnvironment, match="kt-kernel is not installed"):
        check_names(("kt", "torch"))
    assert "pip install" in missing_peers([EXPERTS], ("cpuinfer", "torch"))[0]
    assert missing_peers([LINEAR], ("cpuinfer", "torch")) == missing_peers([EXPERTS], ("torch", "reference")) == []


def test_cpuinfer_is_our_best_kernel_and_ktransformers_own_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.kernels import YES

    kt = peer_implementation("kt")
    monkeypatch.setattr(kt, "runnable", lambda: YES)
    found = contests([LINEAR, EXPERTS], "cpuinfer", "torch", 2)
    assert [(c.a, c.b) for c in found] == [(best(LINEAR), "torch"), (best(EXPERTS), "torch"), ("kt", "torch")]
    assert [(c.a, c.b) for c in contests([EXPERTS], "kt", "cpuinfer", 2)] == [("kt", best(EXPERTS))]
    assert not kt.supports(LINEAR).ok and not kt.supports(EXPERTS.replace(n=128)).ok


def test_two_real_processes_agree_on_what_they_measure() -> None:
    """Sides of the scalar kernels and of the definition: same bytes, both right, the definition much slower."""
    contest = Contest(LINEAR, "cpu.scalar", "reference", 1)
    (found,) = compare_ops([contest], None, Plan(looks=(6, 12), alpha=0.2), max_seconds=10, guard=Watching())
    assert found.status == "ok", found.reason
    assert all(share < 1 for share in found.extra["error_share"]) and all(s > 0 for s in found.a_samples)
    assert math.isfinite(found.judgement.ratio) and len(found.a_samples) == len(found.b_samples) >= 6
