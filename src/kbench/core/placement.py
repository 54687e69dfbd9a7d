"""Where a module runs, and how, in each phase."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .errors import UserError


class Phase(str, Enum):
    """Prefill reads the prompt, many tokens at once; decode makes one token after another."""

    PREFILL = "prefill"
    DECODE = "decode"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """``cpu`` or ``cuda:N``; plain ``cuda`` is ``cuda:0``.

    ``host`` counts the processes that a model is spread over, each with devices of its own: ``host1/cpu``,
    ``host1/cuda:0``. Without it a device is that of host 0.
    """

    kind: str
    index: int = 0
    host: int = 0

    @classmethod
    def parse(cls, text: str, where: str = "device") -> Device:
        """Raises UserError for anything but ``cpu``, ``cuda``, ``cuda:N``, and these behind ``hostN/``."""
        match = re.fullmatch(r"(?:host(\d{1,6})/)?(?:(cpu)|cuda(?::(\d{1,6}))?)", text)
        if match is None:
            raise UserError(
                f"unknown device {text!r}", where=where, accepted="cpu, cuda, cuda:N, hostN/cpu, hostN/cuda:N"
            )
        host = int(match[1] or 0)
        return cls("cpu", 0, host) if match[2] else cls("cuda", int(match[3] or 0), host)

    def __str__(self) -> str:
        name = self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"
        return f"host{self.host}/{name}" if self.host else name


CPU = Device("cpu")

# The implementation that stands for "the best one this device can run": resolved when a model is lowered.
AUTO = "auto"


# Families of implementations whose names have a dot. Any other dotted name is the path of somebody's own operator.
_FAMILIES = ("cpu", "ladder")


def is_injected(implementation: str) -> bool:
    """Whether ``implementation`` is the dotted path of somebody's own operator, e.g. ``mypackage.module.MyMLP``."""
    return "." in implementation and implementation.partition(".")[0] not in _FAMILIES


# Kernel parameters by name: a number, or one of a few choices by its name, e.g. ``{"activation_planes": 1}``.
Block = Mapping[str, "int | str"]


@dataclass(frozen=True, slots=True)
class GpuExperts:
    """Some of a layer's routed experts: they lie on ``device`` and run there by ``op``, in both phases, while the
    others are where their module is placed.

    Attributes:
        experts: their numbers, rising.
    """

    experts: tuple[int, ...]
    device: Device
    op: str = AUTO

    def why_not(self, n_experts: int) -> str:
        """Why they are no part of a layer that has ``n_experts``; empty: they are."""
        if not self.experts:
            return "no experts"
        wrong = next((expert for expert in self.experts if not 0 <= expert < n_experts), None)
        if wrong is not None:
            return f"expert {wrong} of {n_experts}, which count from 0"
        return f"all {n_experts} experts" if len(self.experts) == n_experts else ""

    def others(self, n_experts: int) -> tuple[int, ...]:
        """The layer's experts that are not among these, rising."""
        mine = set(self.experts)
        return tuple(expert for expert in range(n_experts) if expert not in mine)


@dataclass(frozen=True, slots=True)
class Placement:
    """A module's device and implementation per phase, its thread count and kernel parameters.

    ``generate`` is KTransformers' word for decode in rule files. ``out_device`` is where the result is wanted
    (None: where it was made). ``threads`` holds for both phases where ``generate_threads`` and ``prefill_threads`` do
    not say otherwise. ``kwargs`` are what somebody's own operator is made with besides: plain data.
    ``absorb_for_prefill``, of latent attention: whether prefill, too, keeps the latent compressed (None: whichever is
    faster).
    ``gpu_experts``, of routed experts: those of the layer that lie on a device of their own.
    """

    generate_device: Device = CPU
    generate_op: str = AUTO
    prefill_device: Device = CPU
    prefill_op: str = AUTO
    out_device: Device | None = None
    threads: int | None = None
    block: Block = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    generate_threads: int | None = None
    prefill_threads: int | None = None
    absorb_for_prefill: bool | None = None
    gpu_experts: GpuExperts | None = None

    def device(self, phase: Phase) -> Device:
        return self.prefill_device if phase is Phase.PREFILL else self.generate_device

    def implementation(self, phase: Phase) -> str:
        return self.prefill_op if phase is Phase.PREFILL else self.generate_op

    def thread_count(self, phase: Phase) -> int | None:
        """Threads of ``phase``; None: as many as the engine takes for it."""
        own = self.prefill_threads if phase is Phase.PREFILL else self.generate_threads
        return self.threads if own is None else own


# Module name (Hugging Face's, dotted) -> placement. A module that is missing is placed by ``Placement()``.
Assignment = Mapping[str, Placement]
