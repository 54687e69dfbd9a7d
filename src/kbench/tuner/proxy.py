"""A smaller problem that takes a known share of a large one's time, so that measuring takes seconds.

A projection of DeepSeek-V2 is 43 GFLOP in one prefill step. Its output rows, and attention's heads, are each computed
alike and alone, so a few of them tell the time of all. A share stays large enough to fill every thread, and to be read
from memory rather than from a cache where memory is what limits it. (Routed experts need no stand-in here: whoever
measures them makes only as many as it takes.)
"""

from __future__ import annotations

from kbench.core import Problem, work

# Work that a measured call may hold: tens of milliseconds on one core, a few milliseconds of memory traffic. Rows are
# quantised once however many are multiplied with them, and what is cut counts that as often as it is cut: at 256 tokens
# of 5120 elements 4 % of the time for 512 rows, 1.5 % for the 1536 that this leaves.
MAX_FLOPS = 4e9
MAX_BYTES = 128 << 20

# Rows are cut in multiples of this: register tiles of 16 rows for up to 32 threads.
_ROWS = 512
_HEADS = 8


def proxy(problem: Problem) -> tuple[Problem, float]:
    """The problem to measure, and what its seconds are multiplied with to give ``problem``'s."""
    size = work(problem)
    share = max(size.flops / MAX_FLOPS, (size.weight_bytes + size.cache_bytes) / MAX_BYTES)
    if share <= 1:
        return problem, 1.0
    if problem.op == "linear":
        return _cut(problem, "n", _ROWS, share)
    if problem.op in ("head_linear", "mla_attention", "mla_decompressed"):
        return _cut(problem, "heads", _HEADS, share)
    if problem.op == "attention":
        # Query heads of one key-value head share its cache: they are cut together.
        group = problem.integer("heads") // problem.integer("kv_heads")
        cut, scale = _cut(problem, "kv_heads", 2, share)
        return cut.replace(heads=cut.integer("kv_heads") * group), scale
    return problem, 1.0


def _cut(problem: Problem, name: str, step: int, share: float) -> tuple[Problem, float]:
    whole = problem.integer(name)
    part = min(whole, max(step, round(whole / share / step) * step))
    return problem.replace(**{name: part}), whole / part
