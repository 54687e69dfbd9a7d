"""Measuring cells: what is stored, what is refused a time, what is not measured twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import Problem
from kbench.kernels import YES, AnyArray, implementation, implementations, registry
from kbench.measure import FixedCount, host
from kbench.results import Store
from kbench.suites import Cell, records_of, run_cells, stands_for

LINEAR = Problem.make("linear", quant="Q4_0", n=48, k=64, tokens=2)
ADD = Problem.make("add", d=64, tokens=1)


class Faulty:
    """The reference, spoiled."""

    name, device_kind, summary = "faulty", "cpu", "for tests"

    def __init__(self, fault: str) -> None:
        self.fault, self.truth = fault, implementation("reference")

    def runnable(self) -> Any:
        return YES

    def supports(self, problem: Problem) -> Any:
        return YES

    def prepare(self, problem: Problem, weights: Any, block: Any = None) -> Any:
        return self.truth.prepare(problem, weights, block)

    def run(self, call: Any, prepared: Any, inputs: Any, state: Any, threads: int) -> list[AnyArray]:
        if self.fault == "crash":
            raise ZeroDivisionError("planted")
        (y,) = self.truth.run(call, prepared, inputs, state, threads)
        if self.fault == "block":
            y = y.copy()
            y[0, -16:] += 0.5
        return [y[:, :-1] if self.fault == "shape" else y]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Any:
    def plant(fault: str) -> None:
        found = (*registry.implementations(), Faulty(fault))
        monkeypatch.setattr(registry, "implementations", lambda: found)

    return plant


def measured(cells: list[Cell], store: Store | None = None, **options: Any) -> list[Any]:
    return run_cells(cells, store, stopping=lambda: FixedCount(3), **options)


def test_a_record_has_everything(tmp_path: Path) -> None:
    store = Store(tmp_path)
    seen: list[tuple[int, int, str]] = []
    (record,) = measured([Cell(LINEAR, "reference", 1)], store, progress=lambda *args: seen.append(args))
    assert record.status == "ok", record.reason
    assert record.key == "linear(quant=Q4_0,n=48,k=64,tokens=2,threads=1)"
    assert len(record.samples) == 3
    assert record.median == sorted(record.samples)[1] > 0
    assert record.host_id == host().host_id
    assert record.op_spec_hash
    assert record.extra["kernel_version"]
    assert record.extra["copies"] > 1
    assert 0 <= record.extra["error_share"] <= 1
    assert [done for done, _, _ in seen] == [0, 1]
    (stored,) = store.read()
    assert stored.samples == record.samples
    json.dumps(dict(record.extra))


def test_order_is_kept_and_fresh_records_are_not_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cells = [Cell(ADD, "reference", 1), Cell(LINEAR, "reference", 1), Cell(LINEAR.replace(tokens=1), "reference", 1)]
    first = measured(cells, store)
    assert [r.key for r in first] == [c.key for c in cells]
    assert [r.samples for r in measured(cells, store)] == [r.samples for r in first]
    assert len(list(store.read())) == 3
    measured([Cell(ADD, "reference", 1, {"rows": 16})], store)  # other kernel parameters: another cell
    assert len(list(store.read())) == 4
    measured(cells[:1], store, fresh=False)
    assert len(list(store.read())) == 5


def test_a_stale_kernel_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    cells = [Cell(ADD, "reference", 1)]
    measured(cells, store)
    monkeypatch.setattr("kbench.suites.runner.kernel_version", lambda item: "another")
    measured(cells, store)
    assert len(list(store.read())) == 2


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [("block", "wrong", "instead of"), ("shape", "wrong", "shape"), ("crash", "crashed", "ZeroDivisionError: planted")],
)
def test_what_is_wrong_never_gets_a_time(tmp_path: Path, faulty: Any, fault: str, status: str, reason: str) -> None:
    faulty(fault)
    store = Store(tmp_path)
    wrong, right = measured([Cell(LINEAR, "faulty", 1), Cell(LINEAR, "reference", 1)], store)
    assert wrong.status == status
    assert reason in wrong.reason
    assert wrong.samples == ()
    assert wrong.median is None
    assert right.status == "ok"
    assert len(list(store.read())) == 2


def test_what_cannot_run_says_why() -> None:
    unknown, q8_0 = measured(
        [
            Cell(LINEAR, "refrence", 1),
            Cell(Problem.make("attention", heads=1, kv_heads=1, d=8, kv="q8_0", tokens=1, context=1), "reference", 1),
        ]
    )
    assert unknown.status == q8_0.status == "unsupported"
    assert "did you mean reference" in unknown.reason
    assert "q8_0" in q8_0.reason  # 8 is no multiple of its block


@pytest.mark.parametrize(
    "key",
    [
        "embedding(quant=Q4_K,vocab=99,d=256,tokens=3)",
        "rms_norm(d=40,rows=2,tokens=3)",
        "linear(quant=Q6_K,n=130,k=256,tokens=20)",
        "head_linear(quant=Q8_0,heads=3,n=16,k=32,tokens=2)",
        "rope(heads=3,d=16,tokens=20)",
        "attention(heads=4,kv_heads=2,d=16,kv=f16,tokens=1,context=40)",
        "attention(heads=4,kv_heads=2,d=16,kv=f16,tokens=20,context=40)",
        "mla_attention(heads=3,kv_lora=32,rope=16,kv=f16,tokens=5,context=9)",
        "silu_mul(n=65,tokens=2)",
        "take_last(d=33,tokens=18)",
        "moe_router(quant=F32,experts=16,top_k=3,k=32,tokens=18)",
        "moe_experts(experts=8,top_k=2,n=32,k=64,quant_gate=Q4_0,quant_up=Q4_0,quant_down=Q4_0,tokens=1)",
        "moe_experts(experts=8,top_k=2,n=32,k=64,quant_gate=Q4_0,quant_up=Q4_0,quant_down=Q4_0,tokens=20)",
    ],
)
def test_every_op_and_runnable_implementation(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbench.suites.copies.MAX_COPIES", 5)
    names = [item.name for item in implementations() if item.runnable().ok]
    records = measured([Cell(Problem.parse(key), name, 1) for name in names])
    for record in records:
        assert record.status in ("ok", "unsupported"), (record.implementation, record.reason)
    assert records[-1].status == "ok"


def test_experts_are_measured_on_a_subset_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of tokens * E / m tokens over m experts, E / m times: as many tokens an expert as in the whole."""
    from kbench.suites.shrink import part_of

    problem = Problem.parse(
        "moe_experts(experts=160,top_k=6,n=1536,k=5120,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=512)"
    )
    one = 2 * 1536 * 5120 * 144 // 256 + 5120 * 1536 * 210 // 256
    part = part_of(problem, cold_bytes=10 * one)
    assert part.problem.integer("experts") == 12  # two sets of top_k are more than the cold cache asks for
    tokens = part.problem.integer("tokens")
    assert tokens * 6 / 12 == pytest.approx(512 * 6 / 160, rel=0.03)
    assert part.scale == pytest.approx(512 / tokens)
    few = part_of(problem.replace(tokens=1), cold_bytes=10 * one)
    assert (few.scale, few.problem.integer("tokens")) == (1.0, 1)
    assert part_of(problem, cold_bytes=10**12).problem.integer("experts") * one <= 768 << 20


def test_a_big_head_is_measured_on_some_rows() -> None:
    from kbench.suites.shrink import MAX_COPY_BYTES, part_of, weight_bytes

    head = Problem.make("linear", quant="Q6_K", n=102400, k=5120, tokens=1)
    for size, cold in ((None, 80 << 20), (4.0, 80 << 20), (4.0, 1 << 40)):
        part = part_of(head, cold, bytes_per_weight=size)
        assert min(cold, MAX_COPY_BYTES / 2) < weight_bytes(part.problem, size) <= MAX_COPY_BYTES
        assert part.scale == pytest.approx(102400 / part.problem.integer("n"))
        assert part.note
    small = head.replace(n=1536)
    assert part_of(small, 80 << 20).problem == small
    embedding = Problem.make("embedding", quant="Q6_K", vocab=102400, d=5120, tokens=3)
    assert part_of(embedding, 1).scale == 1.0
    assert part_of(embedding, 1).problem.integer("vocab") < 10_000


def test_slots_overlap_where_the_next_call_reads_and_nowhere_else() -> None:
    from kbench.kernels import example
    from kbench.suites.layout import plan

    for key in (
        "linear(quant=Q4_0,n=48,k=64,tokens=2)",
        "attention(heads=4,kv_heads=2,d=16,kv=f16,tokens=3,context=9)",
        "moe_router(quant=F32,experts=16,top_k=3,k=32,tokens=2)",
        "add(d=64,tokens=5)",
    ):
        case = example(Problem.parse(key), np.random.default_rng(0))
        tokens = case.call.problem.integer("tokens")
        sets, n_bytes = plan(case.call, case.inputs, tokens)
        for this, other in (sets, sets[::-1]):
            reads = [(at, at + a.nbytes) for at, a in zip(this.inputs, case.inputs, strict=True)]
            writes = [(at, at + tokens * v.width * 4) for at, v in zip(this.outputs, case.call.outputs, strict=True)]
            next_reads = [(at, at + a.nbytes) for at, a in zip(other.inputs, case.inputs, strict=True)]
            spans = sorted(reads + writes)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), key
            shared = [max(0, min(w[1], r[1]) - max(w[0], r[0])) for w in writes for r in next_reads]
            assert 0 < sum(shared) <= 64, key
            assert max(end for _, end in writes) <= n_bytes


def test_a_cell_that_is_surely_slower_is_not_sampled_further() -> None:
    def record(limit: float | None) -> Any:
        cell = Cell(LINEAR.replace(n=512, k=512), "reference", 1)
        return run_cells([cell], None, stopping=lambda: FixedCount(40), limit_seconds=limit)[0]

    whole = record(None)
    assert len(whole.samples) == len(record(1000 * whole.median).samples) == 40
    cut = record(whole.median / 1000)
    assert len(cut.samples) == 6 and cut.status == "ok" and cut.stop_reason.startswith("hopeless")


def test_records_of_a_problem_need_no_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    longer = LINEAR.replace(tokens=22)  # its key begins alike
    cells = [Cell(LINEAR, "reference", 1), Cell(LINEAR, "reference", 2), Cell(longer, "reference", 1)]
    made = measured([*cells, Cell(LINEAR, "reference", 3, {"rows": 16})], store)  # no such parameter: not measured
    known = records_of(LINEAR, "reference", store)
    assert [r.threads for r in known] == [1, 2] and made[-1].status == "unsupported"
    assert records_of(LINEAR, "torch", store) == []
    assert stands_for(made[0], LINEAR, "reference") and not stands_for(made[0], LINEAR, "torch")
    monkeypatch.setattr("kbench.suites.runner.kernel_version", lambda item: "another")
    assert records_of(LINEAR, "reference", store) == []
