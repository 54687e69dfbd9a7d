"""Rotation frequencies of RoPE: plain, linearly scaled, and YaRN.

Sources: Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN, "NTK-by-parts"); DeepSeek-V2's ``mscale`` pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kbench.core import Attribute, UserError

SCALINGS = ("none", "linear", "yarn")
# YaRN's own defaults: a dimension that turns more than 32 times over the original context is left alone, one that
# turns less than once is interpolated fully.
BETA_FAST, BETA_SLOW = 32.0, 1.0


def _number(attrs: Mapping[str, Attribute], name: str, default: float) -> float:
    value = attrs.get(name, default)
    if isinstance(value, (int, float)):
        return float(value)
    raise UserError(f"{name} is {value!r}", where="rope", accepted="a number")


def _magnitude(factor: float, mscale: float) -> float:
    """YaRN's growth of attention logits with the stretch of the context: 0.1 m ln(s) + 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_magnitude(attrs: Mapping[str, Attribute], factor: float) -> float:
    mscale, mscale_all_dim = _number(attrs, "mscale", 0.0), _number(attrs, "mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        # The part that belongs to all dimensions is in the attention scale already.
        return _magnitude(factor, mscale) / _magnitude(factor, mscale_all_dim)
    return _magnitude(factor, 1.0)


def _yarn_ramp(attrs: Mapping[str, Attribute], d: int, base: float) -> npt.NDArray[np.float64]:
    """0 where a pair keeps its frequency, 1 where it is interpolated, a line between: ``[d/2]``."""
    context = _number(attrs, "original_context", 0.0)
    if context <= 0:
        raise UserError("YaRN without the original context", where="rope", accepted="original_context > 0")

    def pair_that_turns(times: float) -> float:
        return d * math.log(context / (times * 2 * math.pi)) / (2 * math.log(base))

    fast = pair_that_turns(_number(attrs, "beta_fast", 0.0) or BETA_FAST)
    slow = pair_that_turns(_number(attrs, "beta_slow", 0.0) or BETA_SLOW)
    if not attrs.get("exact_bounds"):
        fast, slow = math.floor(fast), math.ceil(slow)
    low, high = max(fast, 0.0), min(slow, d - 1.0)
    if low == high:
        high += 0.001  # the ramp becomes a step; no division by zero
    return np.clip((np.arange(d // 2) - low) / (high - low), 0.0, 1.0)


def rope_frequencies(
    attrs: Mapping[str, Attribute], d: int, freq_factors: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.float32], float]:
    """``(inv_freq float32[d/2], attn_factor)``: pair ``i`` at position ``p`` turns by ``p * inv_freq[i]`` radians, and
    the rotated values are multiplied by ``attn_factor`` (1.0 unless YaRN).

    ``d`` is the number of elements that rotate (the ``d`` of the rope problem: ``head_dim`` or fewer; always pass the
    problem's). ``attrs`` are those of a rope call: ``freq_base`` (default 10000), ``scaling`` none|linear|yarn,
    ``factor``, ``original_context``, ``beta_fast``, ``beta_slow``, ``mscale``, ``mscale_all_dim`` (0 or absent: not
    given), ``exact_bounds`` (1: YaRN's ramp is not widened to whole pairs). ``freq_factors`` (``rope_freqs.weight``,
    ``[d/2]``) divides each pair's frequency.

    Raises:
        UserError: an odd ``d``, an unknown scaling, a factor or context that is not positive.
    """
    if d <= 0 or d % 2:
        raise UserError(f"cannot rotate {d} elements", where="rope", accepted="a positive even number")
    base = _number(attrs, "freq_base", 10000.0)
    scaling = str(attrs.get("scaling", "none") or "none")
    inv_freq = base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    attn_factor = 1.0
    if scaling not in SCALINGS:
        raise UserError(f"unknown scaling {scaling!r}", where="rope", accepted=", ".join(SCALINGS))
    if scaling != "none":
        factor = _number(attrs, "factor", 1.0)
        if factor <= 0:
            raise UserError(f"factor {factor}", where="rope", accepted="a positive number")
        if scaling == "linear":
            inv_freq = inv_freq / factor
        else:
            ramp = _yarn_ramp(attrs, d, base)
            inv_freq = inv_freq * (1 - ramp) + inv_freq / factor * ramp
            attn_factor = _yarn_magnitude(attrs, factor)
    if freq_factors is not None:
        divisors = np.asarray(freq_factors, dtype=np.float64).reshape(-1)
        if divisors.size != d // 2 or not np.all(divisors > 0):
            raise UserError(f"{divisors.size} frequency factors", where="rope", accepted=f"{d // 2} positive numbers")
        inv_freq = inv_freq / divisors
    return inv_freq.astype(np.float32), attn_factor
