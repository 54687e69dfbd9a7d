"""A token that is drawn where its logits are, at the end of a step: its id is all that the host learns.

What it is drawn by, and the id, lie in memory whose addresses never change, so that a graph can hold the draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sampling
from .device import TritonImplementation, interpreted

if TYPE_CHECKING:
    import torch

# Where the random number lies, in float64: behind the settings, at a multiple of 16 bytes.
_UNIFORM = 4


class TokenDraw:
    """Draws one of the ``top_k`` largest of a row of logits on torch device ``place``; of one, that is the largest."""

    def __init__(self, place: str, top_k: int) -> None:
        import torch

        pinned = place.startswith("cuda")
        self.top_k = top_k
        self._host = torch.zeros(_UNIFORM + 1, dtype=torch.float64, pin_memory=pinned)
        self._here = torch.zeros(_UNIFORM + 1, dtype=torch.float64, device=place)
        self._token = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)

    def write(self, top_p: float, min_p: float, temperature: float, uniform: float) -> None:
        """What the next ``queue`` draws by; the last one is done. ``temperature`` must not be 0; ``uniform`` is from
        [0, 1)."""
        for i, number in enumerate(sampling.setting_numbers(top_p, min_p, temperature)):
            self._host[i] = number
        self._host[_UNIFORM] = uniform

    def queue(self, logits: torch.Tensor) -> None:
        """Queues the draw from ``logits``, float32 ``[1, vocab]``."""
        import torch

        with torch.inference_mode():
            self._here.copy_(self._host, non_blocking=True)
            ids, values = sampling.largest(logits, self.top_k, finite=True)
            chosen, _ = sampling.draw(ids, values, self._here[:_UNIFORM], self._here[_UNIFORM:])
            self._token.copy_(chosen, non_blocking=True)

    @property
    def token(self) -> int:
        """The id, when what was queued is done; ``-1 - id`` where logit ``id`` is no finite number."""
        return int(self._token[0])


def draws_on(place: str, top_k: int) -> bool:
    """Whether the kernels run on torch device ``place``, and sort out so many candidates."""
    runs = TritonImplementation().runnable().ok and (place != "cpu" or interpreted())
    return runs and 0 < top_k <= sampling.MAX_CANDIDATES
