"""An MLP that reads only part of its last matrix when it decodes.

``down(silu(gate x) * up x)`` multiplies each column of ``down`` by one activation, and most activations are small. With
``keep: 0.5`` only the larger half of them count, and only the columns of ``down`` that they multiply are read.
"""

from __future__ import annotations

import numpy as np

from kbench.engine import InjectedOperator


class SparseMlp(InjectedOperator):
    """For modules of class MLP. ``keep``: the share of activations that count, over 0 up to 1."""

    def __init__(self, *args, keep: float = 0.5, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if not 0 < keep <= 1:
            raise ValueError(f"{self.key}: keep is {keep}, accepted: over 0 up to 1")
        self.keep = keep

    def load(self) -> None:
        # As [k, n], so that the rows that count lie together. The original stays where it is, in the file.
        self.columns = np.ascontiguousarray(self.down_proj.weight.T)

    def forward(self, x: np.ndarray) -> np.ndarray:
        if len(x) > 1:  # a prompt: tokens differ in what counts, so nothing is saved
            return self.orig_module(x)
        gate, up = self.gate_proj(x)[0], self.up_proj(x)[0]  # modules of the original: kbench's kernels run them
        active = gate / (1 + np.exp(-gate)) * up
        kept = np.argpartition(np.abs(active), -self._count(active))[-self._count(active) :]
        kept.sort()
        return active[kept][None, :] @ self.columns[kept]

    def _count(self, active: np.ndarray) -> int:
        return max(1, round(self.keep * active.size))
