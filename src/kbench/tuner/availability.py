"""Which implementations there are on a GPU, as data: what has none cannot be placed there, whatever it would save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbench.core import CPU, Device

GPU_IMPLEMENTATION = "triton"


@dataclass(frozen=True, slots=True)
class Availability:
    """What an engine can run where.

    Attributes:
        missing: operation -> why no GPU implementation runs it. Everything else has one, called GPU_IMPLEMENTATION.
        splits_experts: some of a layer's routed experts can run on a GPU while the others run on the host. Then the
            planner places them in groups, where a GPU runs any; else a layer's experts move as one.
    """

    missing: Mapping[str, str] = field(default_factory=dict, hash=False)
    splits_experts: bool = False

    def why_not(self, op: str, device: Device) -> str:
        """Why ``op`` cannot be placed on ``device``; empty when it can."""
        return "" if device == CPU else self.missing.get(op, "")

    def splits_on(self, devices: Iterable[Device]) -> bool:
        """Whether one of ``devices`` is a GPU that experts can be split with."""
        gpus = [device for device in devices if device != CPU]
        return self.splits_experts and any(not self.why_not("moe_experts", device) for device in gpus)


# Of this package: a layer is split by ``gpu_experts`` of its rule.
KBENCH = Availability({"moe_experts": "kernels for routed experts have run on no GPU yet"}, splits_experts=True)
