"""Copies, launches and graph replays of torch on a device: what ``kbench doctor`` times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TorchLink:
    """Torch device ``place``: ``cuda:N``, or ``cpu``, where host memory stands for the device's and nothing queues."""

    def __init__(self, place: str) -> None:
        import torch

        self.name, self._torch = place, torch
        self._cuda = place.startswith("cuda")
        self._tensor = torch.zeros(1, device=place)

    def copy(self, n_bytes: int, memory: str, direction: str) -> Callable[[], None]:
        torch = self._torch
        pinned = self._cuda and memory == "pinned"
        here = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=pinned)
        there = torch.zeros(n_bytes, dtype=torch.uint8, device=self.name)
        target, source = (there, here) if direction == "to_device" else (here, there)
        return lambda: _done(target.copy_(source, non_blocking=pinned))

    def launch(self) -> Callable[[], None]:
        return lambda: _done(self._tensor.add_(1))

    def replay(self) -> Callable[[], None] | None:
        if not self._cuda:
            return None
        torch = self._torch
        with torch.cuda.device(self.name):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._tensor.add_(1)
        replay: Callable[[], None] = graph.replay
        return replay

    def wait(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize(self.name)


def cuda_links(n_gpus: int) -> list[TorchLink]:
    """One for each of the first ``n_gpus`` devices that torch finds."""
    if not n_gpus:
        return []
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [TorchLink(f"cuda:{index}") for index in range(min(n_gpus, found))]


def _done(_: Any) -> None:
    return None
