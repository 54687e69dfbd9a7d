"""Tokens that are drawn on the device that holds the logits: by what, of which logits, and how a step ends with it.

A step's logits are a vocabulary wide; the token that is drawn of them is one number. So where the device that makes
them has kernels that draw, a step of its own ends with these, and the host learns the token. Random numbers are the
host sampler's, one a token: a seed makes the same tokens on either side, up to a probability's last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbench.core import CheckBroken, Device, OpCall
from kbench.kernels import Spans, TokenDraw, draws_on

from .devices import DeviceMap
from .space import Slot, TokenArray


def logits_device(calls: Sequence[OpCall], devices: DeviceMap) -> Device | None:
    """The device that makes the logits, if it has a memory of its own."""
    maker = next(call for call in calls if any(value.name == "logits" for value in call.outputs))
    return maker.device if devices.has_own_queue(maker.device) and devices.is_local(maker.device) else None


def token_draw(calls: Sequence[OpCall], devices: DeviceMap, top_k: int) -> TokenDraw | None:
    """What draws one of ``top_k`` candidates behind ``calls``; None where they leave the logits in host memory, or no
    kernel does it."""
    device = logits_device(calls, devices)
    if device is None or not draws_on(str(devices.physical(device)), top_k):
        return None
    return TokenDraw(str(devices.physical(device)), top_k)


def drawn(draw: TokenDraw) -> int:
    """The token of the step that is done.

    Raises:
        CheckBroken: a logit is NaN or infinite.
    """
    token = draw.token
    if token < 0:
        raise CheckBroken(
            f"logit {-1 - token} is NaN or infinite", where="sampling",
            todo="the weights or a kernel are broken: try --implementation reference",
        )  # fmt: skip
    return token


class DrawStep:
    """The end of a step."""

    def __init__(self, draw: TokenDraw, logits: Slot) -> None:
        self._draw, self._logits = draw, logits

    def run(self, tokens: TokenArray, spans: Spans) -> None:
        self._draw.queue(self._logits.tensor(1))

    def profile(self, tokens: TokenArray, spans: Spans) -> list[float]:
        """Of calls, and it is none."""
        self.run(tokens, spans)
        return []
