"""Some of a layer's experts on one device, the others on another: each adds up its own, and their sum is the layer's.

What holds a part says so in its weights (``WeightData.experts``) and in its calls (attribute ``experts``). On a GPU a
call is masked: it is given the router's choice and leaves out what is not there, ``triton`` by a table on the device,
``torch`` and ``reference`` by ``visited``. Native kernels know places only; ``pairs_here``, which operation
``expert_map`` is, turns a router's choice into places among the experts that are there, and ``ELSEWHERE``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall, UserError

from .implementation import FloatArray, WeightData

# The id of a choice that lies on another device: every implementation leaves it out. ``kElsewhere`` in C++.
ELSEWHERE = -1


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


def experts_of(call: OpCall) -> tuple[int, ...]:
    """The experts that the weights of ``call`` are cut down to; empty: all that are stored."""
    part = call.attrs.get("experts", ()) if call.op == "moe_experts" else ()
    assert isinstance(part, tuple)
    return tuple(int(expert) for expert in part)


def visited(call: OpCall, ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Of the distinct ``ids`` that ``call`` is given, each that is here, and its expert's place among the weights: of a
    masked call ids are the layer's experts, of others they are places already."""
    if not call.attrs.get("masked"):
        return ((place, place) for place in ids if place != ELSEWHERE)
    places = {expert: place for place, expert in enumerate(experts_of(call))}
    return ((expert, places[expert]) for expert in ids if expert in places)


def place_table(experts: Sequence[int], n_experts: int) -> npt.NDArray[np.int32]:
    """``[n_experts]``: the place of each among ``experts``, ``ELSEWHERE`` where it is not."""
    places = np.full(n_experts, ELSEWHERE, dtype=np.int32)
    places[list(experts)] = np.arange(len(experts), dtype=np.int32)
    return places


def pairs_here(
    experts: Sequence[int], ids: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.int32], FloatArray]:
    """``ids`` and ``scores [tokens, top_k]`` for an implementation that was given ``expert_subset`` of all weights, and
    knows of no others: ids are places among ``experts``; what lies elsewhere is ``ELSEWHERE`` and counts nothing."""
    n_experts = 1 + max(int(ids.max(initial=0)), *experts)
    here = place_table(experts, n_experts)[ids]
    return here, np.where(here == ELSEWHERE, scores.dtype.type(0), scores)
