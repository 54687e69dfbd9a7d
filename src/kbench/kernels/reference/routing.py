"""Which experts a token goes to, as DeepSeek, Qwen and Mixtral define it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kbench.core import Attribute, OpCall, UserError

from .tensor import Tensor

SCORINGS = ("softmax", "sigmoid")
_Item = TypeVar("_Item")


def softmax(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Over the last axis; safe for any finite input and for rows with some ``-inf``."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def top(x: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` largest along the last axis, largest first, ties to the lower index."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :count]


def router_biases(call: OpCall, weights: Sequence[_Item]) -> tuple[_Item | None, _Item | None]:
    """What is behind a router's matrix among its weights: the bias of its logits, where attribute ``logit_bias`` says
    that there is one, and the correction of its choice; None for what there is not."""
    rest = list(weights[1:])
    logit_bias = rest.pop(0) if call.attrs.get("logit_bias") else None
    return logit_bias, rest.pop(0) if rest else None


def router_logits(call: OpCall, weights: Sequence[Tensor], x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``[tokens, experts]``."""
    logits, (bias, _) = x @ weights[0].matrix().T, router_biases(call, weights)
    return np.asarray(logits if bias is None else logits + bias.vector())


def choice_scores(
    logits: npt.NDArray[Any], attrs: Mapping[str, Attribute], bias: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """``(scores, choice)`` both ``[tokens, experts]``: weights come from the first, experts by the second.

    ``choice`` adds the correction bias (``noaux_tc``), and is ``-inf`` outside the best ``topk_group`` of ``n_group``
    groups. A group's score is its best expert, or with a bias the sum of its best two (DeepSeek-V3).
    """
    scoring = str(attrs.get("scoring", "softmax"))
    if scoring not in SCORINGS:
        raise UserError(f"unknown scoring {scoring!r}", where="moe_router", accepted=", ".join(SCORINGS))
    scores = softmax(logits) if scoring == "softmax" else 1 / (1 + np.exp(-logits))
    choice = scores if bias is None else scores + bias
    n_group, topk_group = int(attrs.get("n_group") or 1), int(attrs.get("topk_group") or 1)  # type: ignore[arg-type]
    if n_group > 1 and topk_group < n_group:
        groups = choice.reshape(len(choice), n_group, -1)
        best = np.sort(groups, axis=-1)[..., ::-1]
        group_scores = best[..., 0] if bias is None else best[..., :2].sum(axis=-1)
        kept = np.zeros(group_scores.shape, bool)
        np.put_along_axis(kept, top(group_scores, topk_group), True, axis=-1)
        choice = np.where(kept[..., None], groups, -np.inf).reshape(choice.shape)
    return scores, choice


def route(
    logits: npt.NDArray[Any], top_k: int, attrs: Mapping[str, Attribute], bias: npt.NDArray[Any] | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """``(ids, weights)`` of ``[tokens, top_k]``, best first: chosen scores, made to sum to 1 where the model
    renormalises (``norm_topk_prob``), times ``routed_scaling``."""
    scores, choice = choice_scores(logits, attrs, bias)
    ids = top(choice, top_k)
    weights = np.take_along_axis(scores, ids, axis=-1)
    if attrs.get("norm_topk_prob"):
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)  # as DeepSeek guards an all-zero row
    return ids.astype(np.int32), weights * float(attrs.get("routed_scaling") or 1.0)  # type: ignore[arg-type]
