"""Links to GPUs as `kbench doctor` measured them, in place of what a GPU's profile assumes of its link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kbench.core import Device
from kbench.measure import LINK, LinkCosts
from kbench.results import Record, Store

from .budget import profile_of
from .profile import GpuProfile


def links_of(records: Iterable[Record]) -> dict[str, tuple[str, LinkCosts]]:
    """By device, the GPU's name and its newest measurements."""
    found: dict[str, tuple[str, dict[str, tuple[float, ...]]]] = {}
    for record in records:
        if record.op == LINK and record.status == "ok" and record.samples:
            gpu = str(record.extra.get("gpu", ""))
            if found.get(record.device, (gpu, {}))[0] != gpu:
                found.pop(record.device)
            found.setdefault(record.device, (gpu, {}))[1][str(record.problem["what"])] = record.samples
    return {device: (gpu, LinkCosts(device, samples)) for device, (gpu, samples) in found.items()}


def with_links(
    profiles: Mapping[Device, GpuProfile], links: Mapping[str, tuple[str, LinkCosts]]
) -> dict[Device, GpuProfile]:
    """``profiles`` with the measured links of those GPUs that they are of."""
    found = dict(profiles)
    for device, profile in profiles.items():
        gpu, costs = links.get(str(device), ("", None))
        if costs is not None and profile_of(gpu) == profile.name:
            found[device] = replace(profile, measured=costs)
    return found


def stored_links(profiles: Mapping[Device, GpuProfile], store: Store, host_id: str) -> dict[Device, GpuProfile]:
    """``with_links`` of the host's records."""
    return with_links(profiles, links_of(store.find(op=LINK, host_id=host_id))) if profiles else dict(profiles)
