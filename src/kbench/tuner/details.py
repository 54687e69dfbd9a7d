"""What explains a tune beyond its answer: the machine, its ceilings, more and less GPU memory, kernel parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbench import __version__
from kbench.core import CPU, Device
from kbench.measure import Host
from kbench.results import SOLD_GIB, Record, Store

from .budget import Budget
from .cost_model import MEASURED, MODELLED, Roof
from .layout import Layout
from .placement import PlacementProblem
from .profile import GpuProfile
from .vram_curve import curve_rows

# Sweeps that are kept: those of a few models. More would tell nobody anything.
_MAX_SWEEPS = 60


def details(
    layout: Layout,
    problem: PlacementProblem,
    available: Sequence[Budget],
    profiles: Mapping[Device, GpuProfile],
    machine: Host | None,
    sweeps: Iterable[Record] = (),
) -> dict[str, Any]:
    """Fields of the JSON object that only a page has room for. ``sweeps`` are records with kernel parameters."""
    gpus = [budget for budget in available if budget.device in layout.devices and budget.device != CPU]
    curve = []
    if gpus:
        index = layout.devices.index(gpus[0].device)
        curve = curve_rows(layout, problem, index, gpus[0].total_bytes)
    return {
        "kbench_version": __version__,
        "machine": machine_fields(machine) if machine else None,
        "ceilings": [*_host_ceilings(layout.costs.roof), *_gpu_ceilings(gpus, profiles)],
        "vram_curve": curve,
        "what_if": what_if(curve, gpus[0].total_bytes if gpus else 0),
        "block_sweeps": block_sweeps(sweeps),
    }


def what_if(curve: Sequence[Mapping[str, Any]], vram_bytes: int) -> list[dict[str, Any]]:
    """What cards with common memory sizes would bring, ``decode_ratio`` beside the plan for ``vram_bytes``; None where
    nothing fits."""
    points = {point["vram_bytes"]: point for point in curve}
    now = points.get(vram_bytes, {}).get("decode_tokens_per_s")
    rows = []
    for gib in SOLD_GIB:
        point = points.get(gib << 30)
        if point is not None:
            decode = point.get("decode_tokens_per_s")
            rows.append(
                {
                    "vram_bytes": gib << 30,
                    "decode_tokens_per_s": decode,
                    "prefill_tokens_per_s": point.get("prefill_tokens_per_s"),
                    "decode_ratio": decode / now if decode and now else None,
                }
            )
    return rows


def machine_fields(machine: Host) -> dict[str, Any]:
    """What of the host matters to a reader of numbers."""
    cpu = machine.cpu
    caches = [f"{cache.name} {cache.n_bytes >> 10} KiB × {len(cache.instances)}" for cache in cpu.caches]
    return {
        "cpu": cpu.model,
        "physical_cores": cpu.n_physical_cores,
        "logical_cpus": cpu.n_logical_cpus,
        "usable_cpus": machine.usable_cpus,
        "numa_nodes": len(cpu.numa),
        "memory_bytes": machine.memory.total_bytes,
        "instruction_sets": list(cpu.flags),
        "caches": caches,
        "gpus": [gpu.name for gpu in machine.gpus],
        "system": machine.system,
        "versions": dict(machine.versions),
    }


def _host_ceilings(roof: Roof) -> list[dict[str, Any]]:
    counts = sorted(set(roof.bandwidth) & set(roof.peak))
    return [
        {
            "device": str(CPU),
            "threads": n,
            "source": MEASURED,
            "bandwidth_bytes_per_s": roof.bandwidth[n],
            "operations_per_s": roof.peak[n],
        }
        for n in counts
    ]


def _gpu_ceilings(gpus: Iterable[Budget], profiles: Mapping[Device, GpuProfile]) -> list[dict[str, Any]]:
    return [
        {
            "device": str(budget.device),
            "label": profiles[budget.device].label,
            "source": MODELLED,
            "bandwidth_bytes_per_s": profiles[budget.device].bandwidth,
            "operations_per_s": profiles[budget.device].fp16_flops,
            "int8_operations_per_s": profiles[budget.device].int8_ops,
        }
        for budget in gpus
    ]


def stored_sweeps(store: Store, host_id: str) -> list[Record]:
    """The host's records of cases that were timed with other kernel parameters than the defaults."""
    found = [
        record for record in store.find(host_id=host_id, status="ok") if record.median and record.unit == "seconds"
    ]
    swept = {(record.key, record.implementation) for record in found if record.extra.get("block")}
    return [record for record in found if (record.key, record.implementation) in swept]


def block_sweeps(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One entry for each case and implementation: seconds by setting, ``default`` for the kernel's own choice.

    Of several records of a setting the last one counts; those of other kernel versions than the last are left out.
    """
    cases: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        block = record.extra.get("block")
        if not isinstance(block, dict) or record.median is None:
            continue
        setting = ", ".join(f"{name}={value}" for name, value in sorted(block.items())) or "default"
        case = cases.setdefault((record.key, record.implementation), {})
        case.pop(setting, None)
        case[setting] = record
    entries = []
    for (key, implementation), by_setting in cases.items():
        newest = list(by_setting.values())[-1].extra.get("kernel_version")
        settings = [
            {"block": setting, "seconds": record.median}
            for setting, record in by_setting.items()
            if record.extra.get("kernel_version") == newest
        ]
        if len(settings) > 1:
            settings.sort(key=lambda entry: (entry["block"] != "default", entry["block"]))
            entries.append({"problem": key, "implementation": implementation, "settings": settings})
    return entries[-_MAX_SWEEPS:]
