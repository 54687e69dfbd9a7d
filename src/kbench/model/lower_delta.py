"""What a layer of Qwen3-Next has of its own: linear attention by the gated delta rule, and a gate on full attention.

For planning: nothing here runs these operations yet.
"""

from __future__ import annotations

from kbench.core import Problem, Value

from .descriptor import Delta
from .draft import Draft


def lower_delta(draft: Draft, index: int, x: str) -> str:
    """One product for queries, keys, values and the gate, a small one for step and decay; what follows up to the output
    product (convolution, state, gated norm) is one call that keeps a state of fixed size."""
    m, module, block = draft.model, f"model.layers.{index}.linear_attn", f"blk.{index}"
    a = m.delta
    assert a is not None
    if draft.has(f"{block}.ssm_in.weight"):
        made = [draft.linear(f"{module}.in_proj_qkvz", x, f"{block}.ssm_in")]
    else:
        stems = (("qkv", f"{block}.attn_qkv"), ("z", f"{block}.attn_gate"))
        made = [draft.linear(f"{module}.in_proj_qkvz", x, stem, out=f"{module}.{part}") for part, stem in stems]
    steps = draft.linear(f"{module}.in_proj_ba", x, f"{block}.ssm_ba")
    problem = delta_problem(a, draft.tokens)
    attended = draft.emit(problem, module, (*made, steps), (Value(module, a.values),), attrs={"layer": index})
    return draft.linear(f"{module}.out_proj", attended, f"{block}.ssm_out")


def delta_problem(a: Delta, tokens: int) -> Problem:
    return Problem.make(
        "delta_rule",
        key_heads=a.key_heads,
        key_dim=a.key_dim,
        value_heads=a.value_heads,
        value_dim=a.value_dim,
        conv=a.conv,
        tokens=tokens,
    )


def gate_attention(draft: Draft, index: int, attended: str, q: str) -> str:
    """``attended * sigmoid(gate)``; the gate is the second half of every head's part of ``q``."""
    n, module = draft.model.heads * draft.model.head_dim, f"model.layers.{index}.self_attn"
    problem = Problem.make("sigmoid_mul", n=n, tokens=draft.tokens)
    return draft.emit(problem, module, (attended, q), (Value(f"{module}.gated", n),))
