"""An operator for routers: tokens go to experts that were written down, with the weights that the router gives these.

Two engines that round differently send a token to different experts wherever two scores are nearly equal, and nothing
after that is comparable. With the other engine's choices, it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import Placement
from kbench.engine import InjectedOperator
from kbench.model import ModelDescriptor, Moe

Array = npt.NDArray[Any]


def router_module(layer: int) -> str:
    """The router of a layer of DeepSeek."""
    return f"model.layers.{layer}.mlp.gate"


def route_weights(logits: Array, ids: Array, moe: Moe) -> Array:
    """The weights of experts ``ids [tokens, top_k]`` by DeepSeek's definition: their scores, made to sum to 1 where the
    model renormalises, times its factor. A correction bias is part of the choice only."""
    if moe.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    weights = np.take_along_axis(scores, ids, axis=-1)
    if moe.norm_topk_prob:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights * moe.routed_scaling, np.float32)


class RecordedRoutes(InjectedOperator):
    """For modules of class MoEGate. ``routes``: a .npz file with ids ``[positions, top_k]`` by the module's name."""

    def __init__(self, *args: Any, routes: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.routes = routes

    def load(self) -> None:
        with np.load(self.routes) as file:
            self.ids = file[self.key]
        self.matrix = np.ascontiguousarray(self.weight.T)

    def forward(self, x: Array) -> tuple[Array, Array]:
        ids = np.concatenate([self.ids[at : at + rows.stop - rows.start] for _, at, rows in self.state.parts()])
        return ids, route_weights(x @ self.matrix, ids, self.config.moe)


def recorded(model: ModelDescriptor, routes: str) -> dict[str, Placement]:
    """The placements of all of ``model``'s routers on ``RecordedRoutes``; load with ``trust=["recorded_routes"]``."""
    name = f"{__name__}.{RecordedRoutes.__name__}"
    place = Placement(generate_op=name, prefill_op=name, kwargs={"routes": routes})
    return {router_module(layer): place for layer in range(model.n_layers) if model.has_experts(layer)}
