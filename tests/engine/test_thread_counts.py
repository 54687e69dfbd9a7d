"""Thread counts by module and phase: what is asked for is what runs, and the tokens are the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import OpCall, Phase, Placement, parse_yaml
from kbench.engine import Session, load_model, loader
from kbench.kernels import implementation
from kbench.rules import parse_rules

pytest.importorskip("kbench.kernels.cpu._native")

RULES = r"""
kbench: 1
provenance: {}
rules:
- match: {name: 'mlp\.up_proj$'}
  replace: {class: Linear, kwargs: {threads: 2, prefill_threads: 4}}
- match: {name: 'mlp\.down_proj$'}
  replace: {class: Linear, kwargs: {generate_threads: 2}}
- match: {name: "lm_head$"}
  replace: {class: Linear, kwargs: {threads: 64}}
"""
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def shared_by(session: Session, phase: Phase) -> dict[str, int]:
    """By module: the threads that share the step of its matrix, as the native program has it recorded."""
    executable: Any = session._decode if phase is Phase.DECODE else session._prefill
    found = {}
    for segment in executable._steps:
        ends, threads, begin = segment._ends, segment._program.step_threads, 0
        calls = [call for call in executable.calls if call.implementation.startswith("cpu.")]
        for call, end in zip(calls, ends, strict=True):
            if call.op == "linear":
                found[call.module] = max(threads[begin:end])
            begin = end
    return found


def test_rules_and_phases_choose_how_many_threads_share_a_step(tiny_gguf: Path) -> None:
    rules = parse_rules(parse_yaml(RULES))
    session = load_model(tiny_gguf, rules, context=32, threads=1, prefill_threads=5)
    assert (session.threads, session.prefill_threads) == (1, 5)
    decode, prefill = shared_by(session, Phase.DECODE), shared_by(session, Phase.PREFILL)
    layer = "model.layers.1."
    assert decode[layer + "self_attn.q_proj"] == 1 and prefill[layer + "self_attn.q_proj"] == 5
    assert decode[layer + "mlp.up_proj"] == 2 and prefill[layer + "mlp.up_proj"] == 4
    assert decode[layer + "mlp.down_proj"] == 2 and prefill[layer + "mlp.down_proj"] == 5
    assert decode["lm_head"] == prefill["lm_head"] == 5  # never more than the counts that were asked for
    alone = load_model(tiny_gguf, context=32, threads=1)
    assert set(shared_by(alone, Phase.PREFILL).values()) == {1}
    np.testing.assert_allclose(session.prefill(PROMPT), alone.prefill(PROMPT), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(session.decode(7), alone.decode(7), rtol=1e-3, atol=1e-3)


def test_without_counts_a_rule_may_use_every_processor_and_no_more(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "allowed_cpus", lambda: frozenset(range(6)))
    monkeypatch.setattr(loader, "thread_limit", lambda cores, quota: cores)
    monkeypatch.setattr(loader, "default_threads", lambda: 3)
    session = load_model(tiny_gguf, {"lm_head": Placement(threads=64)}, context=32)
    decode = shared_by(session, Phase.DECODE)
    assert decode["lm_head"] == 6 and decode["model.layers.0.mlp.up_proj"] == 3
    assert (session.threads, session.prefill_threads) == (3, 3)


def test_implementations_in_python_are_told_the_count(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    reference = type(implementation("reference"))
    run = reference.run

    def listen(self: Any, call: OpCall, prepared: Any, inputs: Sequence[Any], state: Any, threads: int) -> Any:
        told.append((call.module, len(state.tokens), threads))
        return run(self, call, prepared, inputs, state, threads)

    monkeypatch.setattr(reference, "run", listen)
    slow = Placement(generate_op="reference", prefill_op="reference")
    placements = {"lm_head": Placement(generate_op="reference", prefill_op="reference", generate_threads=3)}
    session = load_model(tiny_gguf, placements, default=slow, context=32, threads=2, prefill_threads=4)
    session.prefill(PROMPT)
    session.decode(7)
    assert {threads for module, tokens, threads in told if tokens > 1 and module != "lm_head"} == {4}
    assert {threads for module, tokens, threads in told if tokens == 1 and module != "lm_head"} == {2}
    assert [threads for module, _, threads in told if module == "lm_head"] == [4, 3]
