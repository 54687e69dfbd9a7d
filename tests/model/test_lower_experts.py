"""A layer whose experts lie on two devices: two calls, each with its own, and one sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_lower import check_flow
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import AUTO, CPU, Device, GpuExperts, OpCall, Phase, Placement, UserError, work
from kbench.model import ModelDescriptor, build_tree, lower

GPU = Device("cuda")
WITH_EXPERTS = [name for name in ARCHITECTURES if make_tiny(name).moe is not None]
PART = (0, 3, 7)
REST = (1, 2, 4, 5, 6)
# Experts in memory but for some, everything else on the GPU.
HYBRID = Placement(gpu_experts=GpuExperts(PART, GPU))


def split(m: ModelDescriptor, experts: Placement = HYBRID) -> dict[str, Placement]:
    places = {module.name: Placement(GPU, AUTO, GPU, AUTO) for module in build_tree(m).walk()}
    return places | {name: experts for name in places if name.endswith(".experts")}


def lowered(m: ModelDescriptor, experts: Placement = HYBRID, tokens: int = 1, **options: bool) -> tuple[OpCall, ...]:
    phase = Phase.DECODE if tokens == 1 else Phase.PREFILL
    return lower(m, split(m, experts), phase, tokens, 64, resolve=lambda problem, device: device.kind, **options)


@pytest.mark.parametrize("architecture", WITH_EXPERTS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_each_side_does_its_own_and_they_are_added(architecture: str, tokens: int) -> None:
    m = make_tiny(architecture)
    calls, whole = lowered(m, tokens=tokens), lowered(m, Placement(), tokens)
    check_flow(calls)
    assert m.moe is not None
    n_layers = sum(call.op == "moe_experts" for call in whole)
    pairs = [call for call in calls if call.op == "moe_experts"]
    maps = [call for call in calls if call.op == "expert_map"]
    assert n_layers and len(pairs) == 2 * n_layers and len(maps) == n_layers
    made = {value.name: call for call in calls for value in call.outputs}
    for here, there in zip(pairs[::2], pairs[1::2], strict=True):
        assert (here.device, there.device, here.module) == (CPU, GPU, there.module)
        assert (here.attrs["experts"], there.attrs["experts"]) == (REST, PART)
        # The CPU's ids are places among its experts, the GPU's are the router's.
        assert here.problem.integer("experts") == len(REST) and "masked" not in here.attrs
        assert there.problem.integer("experts") == m.moe.experts and there.attrs["masked"]
        mapped = made[made[here.inputs[1]].inputs[0]]
        assert mapped.op == "expert_map" and mapped.device == GPU and mapped.attrs["experts"] == REST
        assert there.inputs[1:] == mapped.inputs
        (added,) = [call for call in calls if there.outputs[0].name in call.inputs]
        assert added.op == "add" and made[added.inputs[0]].inputs == (here.outputs[0].name,)
    # What goes to the CPU and comes back is as much as before.
    moves = [sorted(c.problem.key for c in of if c.op == "transfer") for of in (calls, whole)]
    assert moves[0] == moves[1]


def test_shared_experts_run_before_the_sum_that_waits_for_the_cpu() -> None:
    calls = lowered(make_tiny("deepseek2"))
    layer = [call for call in calls if call.module.startswith("model.layers.1.mlp")]
    assert [c.op for c in layer if c.op != "transfer"][-3:] == ["linear", "add", "add"]


def test_brought_to_the_same_gpu_in_prefill_both_are_masked() -> None:
    experts = replace(HYBRID, prefill_device=GPU)
    calls = lowered(make_tiny("deepseek2"), experts, tokens=5)
    check_flow(calls)
    pairs = [call for call in calls if call.op == "moe_experts"]
    assert {call.device for call in pairs} == {GPU} and all(call.attrs["masked"] for call in pairs)
    assert not any(call.op == "expert_map" for call in calls)
    assert sum(c.op == "moe_experts" and c.device == CPU for c in lowered(make_tiny("deepseek2"), experts)) == 2


def test_what_the_cpu_does_can_be_added_a_layer_later() -> None:
    m = make_tiny("deepseek2")
    calls = lowered(m, defer_experts=True)
    check_flow(calls)
    made = {value.name: call for call in calls for value in call.outputs}
    first, last = (f"model.layers.{i}.mlp.experts" for i in (1, 2))
    for layer in (first, last):  # the GPU's own are added where they are made
        (added,) = [call for call in calls if f"{layer}.gpu" in call.inputs]
        assert added.module == layer.removesuffix(".experts")
    assert made[f"{last}.here.deferred"].op == "add"
    readers = [call.module for call in calls if any(n.startswith(f"{first}.here") for n in call.inputs)]
    assert not any(module.startswith("model.layers.1") for module in readers if module != first)


def test_a_part_may_be_smaller_than_what_a_token_visits() -> None:
    m = make_tiny("deepseek2")
    calls = lowered(m, Placement(gpu_experts=GpuExperts(tuple(range(7)), GPU)))
    (here, *_) = [call for call in calls if call.op == "moe_experts"]
    assert here.problem.integer("experts") == 1 < here.problem.integer("top_k")
    whole = next(call for call in lowered(m, Placement()) if call.op == "moe_experts")
    assert work(here.problem).weight_bytes == work(whole.problem).resident_bytes / 8


@pytest.mark.parametrize(
    ("experts", "complaint"),
    [((), "no experts"), ((2, 8), "expert 8 of 8"), (tuple(range(8)), "all 8 experts")],
)
def test_parts_that_are_none(experts: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        lowered(make_tiny("deepseek2"), Placement(gpu_experts=GpuExperts(experts, GPU)))


def test_somebodys_own_operator_does_all_experts() -> None:
    with pytest.raises(UserError, match="somebody's own"):
        lowered(make_tiny("deepseek2"), replace(HYBRID, generate_op="mine.Op", prefill_op="mine.Op"))
