"""How an expert joins gate and up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall, UserError

Array = npt.NDArray[Any]
ACTIVATIONS = ("silu", "clamped_swiglu")


def sigmoid(x: Array) -> Array:
    # exp overflows to inf for very negative x, and 1 / inf is the right limit: 0.
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # as in sigmoid
        return np.asarray(x / (1 + np.exp(-x)))


def clamp_of(call: OpCall) -> tuple[float, float] | None:
    """``(alpha, limit)`` of a call whose attribute ``activation`` is ``clamped_swiglu``; None for ``silu``.

    Raises:
        UserError: any other.
    """
    activation = call.attrs.get("activation", "silu")
    if activation not in ACTIVATIONS:
        raise UserError(f"unknown activation {activation!r}", where=call.module, accepted=", ".join(ACTIVATIONS))
    if activation == "silu":
        return None
    return float(call.attrs["alpha"]), float(call.attrs["limit"])  # type: ignore[arg-type]


def gated(gate: Array, up: Array, clamp: tuple[float, float] | None) -> Array:
    """``silu(gate) * up``; or with ``clamp``, gpt-oss's ``g * sigmoid(alpha * g) * (u + 1)`` of ``g``, gate at most
    ``limit``, and ``u``, up within ``+-limit``."""
    if clamp is None:
        return silu(gate) * up
    alpha, limit = (gate.dtype.type(number) for number in clamp)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray(g * sigmoid(alpha * g) * (u + 1))
