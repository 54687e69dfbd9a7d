"""Whether an implementation's outputs are right: every element within its bound of the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall

from .implementation import AnyArray, StepState, WeightData
from .reference import FUNCTIONS, Tensor
from .tolerance import SAFETY, bounds, router_bounds

Array = npt.NDArray[Any]
# Errors of many outputs together: a bound is SAFETY standard deviations, so their root mean square is 1/SAFETY of it.
# Twice that is allowed: a block dominated by one large element has errors up to sqrt(3) times the uniform ones.
RMS_SHARE = 2 / SAFETY
# With fewer outputs than this the root mean square says nothing that the single bounds do not.
MIN_RMS_OUTPUTS = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """``worst`` is the largest error as a share of its bound (over 1: wrong), ``reason`` says what is wrong."""

    ok: bool
    worst: float
    reason: str = ""


def compare(output: Array, truth: Array, bound: Array) -> Verdict:
    """Every element, and all of them together, against their bounds (arrays of one shape, any float type)."""
    if output.shape != truth.shape:
        return Verdict(False, np.inf, f"shape {output.shape} instead of {truth.shape}")
    if not np.all(np.isfinite(output)):
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(output))[0])
        return Verdict(False, np.inf, f"{output[at]} at {at} instead of {truth[at]:.6g}")
    error = np.abs(output.astype(np.float64) - truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / bound)
    worst = float(share.max(initial=0.0))
    if worst > 1:
        at = tuple(int(i) for i in np.unravel_index(int(share.argmax()), share.shape))
        return Verdict(False, worst, f"{output[at]:.6g} at {at} instead of {truth[at]:.6g} ± {bound[at]:.2g}")
    together = float(np.sqrt(np.mean(np.square(share)))) if share.size else 0.0
    if share.size >= MIN_RMS_OUTPUTS and together > RMS_SHARE:
        return Verdict(False, worst, f"errors together are {together / RMS_SHARE:.1f} times what rounding explains")
    return Verdict(True, worst)


def _check_routes(
    call: OpCall,
    weights: Sequence[Tensor],
    inputs: Sequence[Array],
    truth: Sequence[Array],
    got: Sequence[Array],
    a: str,
) -> Verdict:
    """Chosen experts are the truth's but for exchanges of experts whose scores cannot be told apart."""
    choice, choice_bound, relative = router_bounds(call, weights, inputs, a)
    ids, scores = got[0].astype(np.int64), got[1].astype(np.float64)
    experts = choice.shape[1]
    if ids.shape != truth[0].shape:
        return Verdict(False, np.inf, f"ids of shape {ids.shape} instead of {truth[0].shape}")
    if ids.min() < 0 or ids.max() >= experts or any(len(set(row)) != len(row) for row in ids.tolist()):
        return Verdict(False, np.inf, "expert ids out of range or repeated")
    worst = 0.0
    for token, (mine, right) in enumerate(zip(ids.tolist(), truth[0].tolist(), strict=True)):
        extra, missing = set(mine) - set(right), set(right) - set(mine)
        if extra:
            gap = max(choice[token, m] for m in missing) - min(choice[token, e] for e in extra)
            slack = sum(choice_bound[token, list(extra | missing)])
            if gap > slack:
                return Verdict(
                    False, np.inf, f"token {token} goes to experts {sorted(mine)} instead of {sorted(right)}"
                )
            continue  # renormalised weights of a different set are no errors
        expected = dict(zip(right, truth[1][token].tolist(), strict=True))
        for expert, score in zip(mine, scores[token].tolist(), strict=True):
            bound = relative[token, expert] * abs(expected[expert]) + 1e-30
            share = abs(score - expected[expert]) / bound
            worst = max(worst, share)
            if not share <= 1:  # so that NaN is wrong too
                return Verdict(
                    False,
                    worst,
                    f"token {token}: weight {score:.6g} of expert {expert} instead of {expected[expert]:.6g}",
                )
    return Verdict(True, worst)


def _check_top(logits: Array, truth: Sequence[Array], got: Sequence[Array]) -> Verdict:
    """Exactly the largest values, each with an id that has it: of equal logits either may come first."""
    verdict = compare(got[1], truth[1], np.zeros_like(truth[1]))
    if not verdict.ok:
        return verdict
    ids = got[0].astype(np.int64)
    if ids.shape != truth[0].shape:
        return Verdict(False, np.inf, f"ids of shape {ids.shape} instead of {truth[0].shape}")
    inside = ids.min(initial=0) >= 0 and ids.max(initial=0) < logits.shape[1]
    if not inside or any(len(set(row)) != len(row) for row in ids.tolist()):
        return Verdict(False, np.inf, "ids out of range or repeated")
    if not np.array_equal(np.take_along_axis(logits, ids, axis=-1), truth[1]):
        return Verdict(False, np.inf, "an id whose logit is not the value beside it")
    return verdict


def check(
    call: OpCall,
    weights: Sequence[WeightData],
    inputs: Sequence[AnyArray],
    state: StepState,
    outputs: Sequence[AnyArray],
    accuracy: str = "f32",
) -> Verdict:
    """Whether ``outputs`` of ``call`` are right, by the float64 definition and the bounds of an accuracy class.

    Attention's truth is computed on ``state`` as it is: its own append writes the same rows again.
    """
    # The truth and the bounds read the same weights; of an embedding both read a few rows only.
    tensors = [Tensor(weight, np.float64, keep=call.op != "embedding") for weight in weights]
    exact = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in inputs]
    truth = FUNCTIONS[call.op](call, tensors, exact, state)
    if call.op == "moe_router":
        return _check_routes(call, tensors, exact, truth, outputs, accuracy)
    if call.op == "top_logits":
        return _check_top(exact[0], truth, outputs)
    if call.op == "expert_map":
        verdicts = [compare(out, right, np.zeros_like(right)) for out, right in zip(outputs, truth, strict=True)]
        return next((verdict for verdict in verdicts if not verdict.ok), verdicts[0])
    return compare(outputs[0], truth[0], bounds(call, tensors, exact, truth, state, accuracy))
