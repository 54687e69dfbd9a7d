"""Some of a layer's experts on one device, the others on another: each adds up its own, and their sum is the layer's.

What holds a part says so in its weights (``WeightData.experts``). ``triton`` leaves out what is not there by itself;
for everything else ``pairs_here`` turns a router's choice into one among the experts that are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kbench.core import UserError

from .implementation import FloatArray, WeightData


def expert_subset(weight: WeightData, experts: Sequence[int]) -> WeightData:
    """The matrices (or biases) of ``experts`` out of a stack of all, in that order; of matrices the same bytes.

    Raises:
        UserError: an expert that the stack does not have, or one twice.
    """
    count = weight.shape[-1]
    if len(set(experts)) != len(experts) or not all(0 <= expert < count for expert in experts) or not experts:
        raise UserError(
            f"experts {', '.join(map(str, experts))}", where=weight.name, accepted=f"some of 0 to {count - 1}"
        )
    pieces = weight.parts or weight.raw.reshape(count, -1)
    parts = tuple(pieces[expert] for expert in experts)
    # Vectors are read as one run of bytes.
    raw, parts = (weight.raw[:0], parts) if len(weight.shape) == 3 else (np.concatenate(parts), ())
    shape = (*weight.shape[:-1], len(experts))
    return dataclasses.replace(weight, shape=shape, raw=raw, parts=parts, experts=tuple(experts))


def pairs_here(
    experts: Sequence[int], ids: npt.NDArray[np.int32], scores: FloatArray
) -> tuple[npt.NDArray[np.int32], FloatArray]:
    """``ids`` and ``scores [tokens, top_k]`` for an implementation that was given ``expert_subset`` of all weights, and
    knows of no others: ids are places among ``experts``; what goes elsewhere counts nothing here, and goes where its
    token goes anyway, so that no weights are read for it: a token may then go to an expert twice, which ``reference``
    alone does not add up."""
    experts = list(experts)
    places = np.full(max(int(ids.max(initial=0)), *experts) + 1, -1, dtype=np.int32)
    places[experts] = np.arange(len(experts), dtype=np.int32)
    here = places[ids]
    present = here >= 0
    first = np.take_along_axis(here, present.argmax(axis=1)[:, None], axis=1)
    return np.where(present, here, np.maximum(first, 0)), np.where(present, scores, np.float32(0))
