"""What a captured decode step reads on its device: token and position, in memory whose address never changes.

A graph replays what was queued once. So a position that Python reads would be that of the capture for ever: where a
row goes in a cache, how far a token's turn goes, what is hidden from it, are all computed from ``positions`` on the
device. Attention then looks at every slot of a cache, and hides those that hold nothing that the token sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class DeviceStep:
    """One token of sequence 0. ``host``, int64 ``[2]``, pinned where there is a GPU, is what the caller writes: token
    and position; ``here`` is its copy on the device, which the first node of a step makes.

    ``constants``: what calls compute once, before they are captured, by the name of their first output.
    """

    host: torch.Tensor
    here: torch.Tensor
    constants: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def on(cls, place: str) -> DeviceStep:
        """A step's state on torch device ``place``."""
        import torch

        host = torch.zeros(2, dtype=torch.int64, pin_memory=place.startswith("cuda"))
        return cls(host, torch.zeros(2, dtype=torch.int64, device=place))

    def write(self, tokens: npt.NDArray[np.int32], position: int) -> None:
        """What the next ``bring`` takes over: the last step has done so already."""
        self.host[0], self.host[1] = int(tokens[0]), position

    def bring(self) -> None:
        """Queues the copy to the device."""
        self.here.copy_(self.host, non_blocking=True)

    @property
    def tokens(self) -> torch.Tensor:
        """int64 ``[1]``."""
        return self.here[:1]

    @property
    def positions(self) -> torch.Tensor:
        """int64 ``[1]``."""
        return self.here[1:]

    def slot(self, capacity: int) -> torch.Tensor:
        """Where the token's row goes in a cache of ``capacity`` slots: int64 ``[1]``."""
        return self.positions % capacity

    def hidden(self, capacity: int, window: int) -> torch.Tensor:
        """True for the slots that the token does not see: bool ``[1, capacity]``.

        Slot s holds the last position up to the token's own that is s modulo the capacity, if there is one.
        """
        import torch

        slots = torch.arange(capacity, device=self.here.device)
        back = (self.positions - slots) % capacity
        seen = back <= self.positions
        return ~(seen & (back < window) if window else seen)[None]
