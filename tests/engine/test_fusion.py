"""A residual's sum and its norm in one step: which calls, where their values lie, and the same numbers of fewer
launches. The kernel itself: ``interpreted_engine.py``."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_tiny

from kbench.core import CPU, Device, OpCall, Phase, Placement
from kbench.engine import DeviceMap, Session, load_model
from kbench.engine.fusion import as_laid_out, pairs, side_by_side
from kbench.engine.plan_check import plan_errors
from kbench.engine.planned import PlannedExecutable
from kbench.engine.schedule import COMPUTE, SEND, schedule
from kbench.kernels import TorchDevice
from kbench.kernels.torch_baseline import TorchImplementation
from kbench.model import Arena, build_tree, describe_gguf, lower, open_gguf, plan_arena, synthesize

GPU = Device("cuda", 0)
DEVICES = DeviceMap({GPU: CPU})
LAYERS, TOKENS = 3, 4
# Each layer's two, but the last one: behind that the last token is taken out.
PAIRS = 2 * LAYERS - 1
PROMPT = [5, 17, 3, 99, 42, 42, 7, 61, 8, 30, 12]
Place = Callable[[str], Placement]


def both(device: Device, op: str = "torch", out: Device | None = None) -> Placement:
    return Placement(device, op, device, op, out)


LAYOUTS: dict[str, Place] = {
    "all on the device": lambda m: both(GPU),
    "experts on the cpu": lambda m: both(CPU if m.endswith((".experts", ".down_proj")) else GPU),
    # Between a sum and its norm stands a transfer of the sum.
    "results wanted on the cpu": lambda m: both(GPU, out=CPU),
}


@pytest.fixture(scope="module", params=["llama", "deepseek2"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fusion") / f"{request.param}.gguf"
    synthesize(make_tiny(request.param, "Q8_0", n_layers=LAYERS), path, seed=4)
    return path


def placed(path: Path, place: Place) -> dict[str, Placement]:
    return {module.name: place(module.name) for module in build_tree(describe_gguf(open_gguf(path))).walk()}


def lowered(path: Path, place: Place) -> list[OpCall]:
    model = describe_gguf(open_gguf(path))
    return list(lower(model, placed(path, place), Phase.PREFILL, TOKENS, 64, deliver=CPU, resolve=lambda *_: "torch"))


def test_every_residual_but_the_last_is_a_pair_where_kernels_do_both(path: Path) -> None:
    calls = lowered(path, lambda m: both(GPU, "triton"))
    found = pairs(calls, DEVICES)
    assert len(found) == PAIRS
    for add, norm in found.items():
        assert calls[norm].inputs == (calls[add].outputs[0].name,) and calls[norm].module.endswith("layernorm")
    for place in (lambda m: both(GPU, "torch"), lambda m: both(CPU, "triton"), lambda m: both(GPU, "cpu.avx2")):
        assert not pairs(lowered(path, place), DEVICES)


def test_a_norm_of_another_implementation_or_device_is_no_pair(path: Path) -> None:
    apart = lowered(path, lambda m: both(GPU, "torch" if m.endswith("layernorm") else "triton"))
    elsewhere = lowered(path, lambda m: both(Device("cuda", 1) if m.endswith("layernorm") else GPU, "triton"))
    assert not pairs(apart, DEVICES) and not pairs(elsewhere, DeviceMap({GPU: CPU, Device("cuda", 1): CPU}))


def test_a_norm_moves_to_its_sum_and_nothing_else_moves(path: Path) -> None:
    items = schedule(lowered(path, lambda m: both(GPU, "triton", CPU)), DEVICES)
    found = side_by_side(items, DEVICES)
    assert any(item.what == SEND for item in items) and sorted(i.number for i in found) == sorted(
        i.number for i in items
    )
    norms = {items[norm].number for norm in pairs([item.call for item in items], DEVICES).values()}
    assert [i for i in found if i.number not in norms] == [i for i in items if i.number not in norms]
    computed = [item.call.op for item in found if item.what == COMPUTE]
    assert sum(one == ("add", "rms_norm") for one in itertools.pairwise(computed)) >= PAIRS
    for add, norm in pairs([item.call for item in found], DEVICES).items():
        assert norm == add + 1


def bytes_of(arena: Arena, calls: Sequence[OpCall]) -> dict[str, range]:
    values = [value for call in calls for value in call.outputs if value.name in arena.offsets]
    size = {v.name: (1 if v.rows == "one" else TOKENS) * v.width * 4 for v in values}
    return {name: range(at, at + size[name]) for name, at in arena.offsets.items()}


def meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def test_what_a_fused_kernel_reads_is_not_where_it_writes(path: Path) -> None:
    """And each read finds its value, when sums and norms are written at once."""
    calls = lowered(path, lambda m: both(GPU, "triton"))
    found = pairs(calls, DEVICES)

    def written_over(arena: Arena) -> list[str]:
        where = bytes_of(arena, calls)
        wrong = []
        for add, norm in found.items():
            read, made = calls[add].inputs, (calls[add].outputs[0].name, calls[norm].outputs[0].name)
            assert not meet(where[made[0]], where[made[1]])
            wrong += [name for name in read for other in made if meet(where[name], where[other])]
        return wrong

    arena = plan_arena(as_laid_out(calls, DEVICES), TOKENS, GPU)
    assert not written_over(arena)
    assert written_over(plan_arena(calls, TOKENS, GPU))  # laid out as two calls they do
    where, there = bytes_of(arena, calls), set()
    for call in as_laid_out(calls, DEVICES):
        assert {name for name in call.inputs if name in where} <= there
        for value in call.outputs:
            if value.name in where:
                there = {name for name in there if not meet(where[name], where[value.name])} | {value.name}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """torch's sums and norms, counted."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        def run(self: Any, *args: Any) -> Any:
            counts[name] += 1
            return getattr(TorchImplementation, name)(self, *args)

        return run

    for name in ("_add", "_rms_norm"):
        monkeypatch.setattr(TorchDevice, name, counted(name))
    return counts


def fuses(monkeypatch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    """Gives torch a stand-in for a kernel that does both."""

    def residual_norm(self: Any, norm: OpCall) -> Any:
        def add_and_norm(prepared: Any, x: Any, y: Any, total: Any, out: Any) -> None:
            counts["both"] += 1
            with torch.inference_mode():
                for made in (total, out):  # programs of a kernel write rows while others have not read theirs
                    made.fill_(torch.nan)
                total.copy_(x + y)
                out.copy_(TorchImplementation._rms_norm(self, norm, prepared.tensors, [total], None)[0])  # type: ignore[arg-type]

        return add_and_norm

    monkeypatch.setattr(TorchDevice, "residual_norm", residual_norm)


def outputs(session: Session) -> list[np.ndarray]:
    found = [session.prefill(PROMPT), *(session.decode(token).copy() for token in (4, 44))]
    return [*found, session.prefill([9, 19, 29])]


@pytest.mark.parametrize("graph", [True, False], ids=["by plan", "call by call"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_numbers_of_a_launch_less_a_pair(
    path: Path, layout: str, graph: bool, launches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = placed(path, LAYOUTS[layout])
    options: dict[str, Any] = {
        "kv": "f32", "context": 64, "chunk": 16, "threads": 1, "alias": {GPU: CPU}, "graph": graph,
    }  # fmt: skip
    runs = []
    for does in (False, True):
        if does:
            fuses(monkeypatch, launches)
        session = load_model(path, place, **options)
        launches.clear()
        runs.append((outputs(session), dict(launches), session.traffic.moved))
        if graph:
            assert isinstance(session._decode, PlannedExecutable) and plan_errors(session._decode.plan) == []
    (right, apart, traffic), (found, together, moved) = runs
    for a, b in zip(found, right, strict=True):
        np.testing.assert_array_equal(a, b)
    assert traffic == moved
    steps = 4
    assert together["both"] == steps * PAIRS and "both" not in apart
    assert apart["_add"] - together["_add"] == apart["_rms_norm"] - together["_rms_norm"] == together["both"]


def test_a_profile_has_the_seconds_of_both(path: Path, launches: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fuses(monkeypatch, launches)
    place = placed(path, LAYOUTS["all on the device"])
    session = load_model(path, place, kv="f32", context=64, threads=1, alias={GPU: CPU}, graph=False)
    found = session.profile(3)
    assert [call for call, _ in found] == list(session.decode_calls) and all(seconds > 0 for _, seconds in found)
    assert not launches["both"] and len(pairs(list(session.decode_calls), DEVICES)) == PAIRS
