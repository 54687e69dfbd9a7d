"""Where llama.cpp puts tensors and caches, computed as it does from the words of a command line.

Written from what its loader does, beside and not with what kbench's export is written with:
``layer_gpu = upper_bound(splits, float(i - first) / n)`` over cumulated, normalised ``-ts`` in float32, the last
``-ngl`` of all layers and the output on GPUs; an ``-ot`` pattern wins over that, the first that is found in the name.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np


class LlamaPlacement:
    """What ``arguments`` (of llama-server) do to a model of ``n_layers`` layers."""

    def __init__(self, arguments: Sequence[str], n_layers: int) -> None:
        self.n_layers = n_layers
        values = dict(itertools.pairwise(arguments))
        pairs = [(b.rpartition("=")[0], b.rpartition("=")[2]) for a, b in itertools.pairwise(arguments) if a == "-ot"]
        self.overrides = [(re.compile(pattern), buffer) for pattern, buffer in pairs]
        self.n_gpu_layers = int(values["-ngl"])
        names = values.get("-dev", "none")
        self.devices = [] if names == "none" else names.split(",")
        parts = np.array([float(x) for x in values.get("-ts", "1").split(",")], np.float32)
        self.splits = np.cumsum(parts, dtype=np.float32) / parts.sum(dtype=np.float32)

    def layer(self, position: int) -> str:
        """Of a layer, or (``n_layers``) of the output: where its cache lies, and by default its weights."""
        first = max(self.n_layers + 1 - self.n_gpu_layers, 0)
        n = min(self.n_gpu_layers, self.n_layers + 1)
        if not self.devices or position < first or position - first >= n:
            return "CPU"
        share = np.float32(position - first) / np.float32(n)
        return self.devices[bisect_right([float(x) for x in self.splits], float(share))]

    def tensor(self, name: str, head: bool = False) -> str:
        """Where a tensor lies; ``head``: the embedding's matrix where it is read as the head."""
        for pattern, buffer in self.overrides:
            if pattern.search(name):
                return buffer
        match = re.match(r"blk\.(\d+)\.", name)
        if match:
            return self.layer(int(match[1]))
        return "CPU" if name == "token_embd.weight" and not head else self.layer(self.n_layers)
