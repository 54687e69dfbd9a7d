"""Which calls run in place: one layer of every kind, chained as neighbours are, and as many as a cold cache needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("kbench.kernels.cpu._native")

from kbench.core import AUTO, OpCall, Phase, work
from kbench.model import embedded, lower
from kbench.suites import runs_in_place
from kbench.tuner.rehearsal import MAX_BYTES, rehearsed


def calls_of(name: str, phase: Phase = Phase.DECODE) -> tuple[OpCall, ...]:
    tokens = 1 if phase is Phase.DECODE else 256
    return lower(embedded(name), {}, phase, tokens, 1024, resolve=lambda problem, device: AUTO)


def layers_of(calls: Sequence[OpCall]) -> list[str]:
    return list(dict.fromkeys(call.module.split(".")[2] for call in calls if ".layers." in call.module))


def test_one_layer_of_every_kind() -> None:
    """V2-Lite has a dense layer, and experts whose last matrix is Q8_0 or Q5_0."""
    calls = calls_of("deepseek-v2-lite-chat")
    chain = rehearsed(calls, lambda problem: "cpu.scalar", cold_bytes=0)
    assert layers_of(chain) == ["0", "1", "3"]
    assert {call.problem for call in chain} == {call.problem for call in calls}
    assert {call.implementation for call in chain} == {"cpu.scalar"}


@pytest.mark.parametrize("phase", Phase)
def test_every_value_comes_from_a_call_before(phase: Phase) -> None:
    made = {"$tokens"}
    for call in rehearsed(calls_of("deepseek-v2-lite-chat", phase), lambda problem: None, cold_bytes=0):
        assert set(call.inputs) <= made, call.module
        made |= {value.name for value in call.outputs}
        assert call.implementation == AUTO


def test_more_layers_until_no_cache_holds_them() -> None:
    calls = calls_of("deepseek-v2-lite-chat")
    sizes = []
    for cold in (0, 400 << 20, 1 << 40):
        chain = rehearsed(calls, lambda problem: "cpu.scalar", cold_bytes=cold)
        sizes.append(sum(work(call.problem).weight_bytes for call in chain if runs_in_place(call)))
    assert sizes[0] < 400 << 20 <= sizes[1] < sizes[2] <= MAX_BYTES
