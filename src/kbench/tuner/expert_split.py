"""Decoding with a share of every layer's experts on the GPU and the others on the host.

A token visits ``top_k`` experts; how many of them lie on the host is chance. As soon as one does, the layer waits for
the crossing there and back, and the two sides run beside each other:

    T = layers x (serial + E[max(n_gpu x gpu, [n_cpu > 0] x crossing + n_cpu x cpu)])

That is why the first experts that move to the GPU bring little and the last ones most: with 80 % of 512 experts there,
nine of ten tokens still wait for the host in a layer that visits ten.

A model to think with, checked against published curves. The solver does not use it: there, a layer's experts move as
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

# What a layer that used both sides lost to its crossings when DeepSeek-V2-Lite was decoded on a Ryzen 7950X and a GPU:
# 1.88 s of synchronising and copying for 640 tokens through 26 layers of experts (ik_llama.cpp, pull request 232).
CROSSING_SECONDS = 1.88 / 640 / 26

# Routing as it was seen in Qwen3-30B-A3B: 95 % of visits go to the most popular 52.5 % of experts. Of all curves
# 1 - (1 - share)^a this one passes there; a = 1 is uniform routing.
SKEW = 4.02


def hit_rate(share: float, skew: float = 1.0) -> float:
    """Of all visits, those to the most popular ``share`` of experts; ``skew`` is 1 for uniform routing, or for experts
    that were chosen without looking at it."""
    return float(1 - (1 - share) ** skew)


@dataclass(frozen=True, slots=True)
class ExpertSplit:
    """Seconds in decode: of what is no expert (``serial``), of one visited expert on each side, a layer each."""

    layers: int
    top_k: int
    serial: float
    cpu: float
    gpu: float
    crossing: float = CROSSING_SECONDS

    @classmethod
    def fitted(
        cls, none: float, all_: float, *, layers: int, top_k: int, gpu: float, crossing: float = CROSSING_SECONDS
    ) -> ExpertSplit:
        """The split whose step takes ``none`` seconds with no expert on the GPU and ``all_`` with all of them.

        Raises:
            ValueError: the crossings alone take longer than the difference.
        """
        serial = all_ / layers - top_k * gpu
        cpu = (none / layers - serial - crossing) / top_k
        if cpu <= 0 or serial < 0:
            raise ValueError(f"{none} s without and {all_} s with all experts leave none for the work itself")
        return cls(layers, top_k, serial, cpu, gpu, crossing)

    def step_seconds(self, hits: float) -> float:
        """Of one token when a visited expert lies on the GPU with probability ``hits``."""
        k = self.top_k
        expected = 0.0
        for n in range(k + 1):  # experts of the token that lie on the host
            chance = comb(k, n) * (1 - hits) ** n * hits ** (k - n)
            host = self.crossing + n * self.cpu if n else 0.0
            expected += chance * max((k - n) * self.gpu, host)
        return self.layers * (self.serial + expected)
