"""A machine as a file: what planning for it elsewhere needs, written there by `kbench doctor --export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kbench.core import Lines, UserError, load_yaml, write_whole

from .ceilings import READ_BANDWIDTH, Ceilings
from .host import Host
from .link import LINK_NAMES, LinkCosts

SCHEMA_VERSION = 1
_FIELDS = (
    "kbench_host", "host_id", "cpu", "usable_cpus", "memory_bytes", "gpus", "read_bandwidth", "arithmetic_peak",
)  # fmt: skip

# Only where there are GPUs.
_LINKS = "links"

# More than any machine has: a file may claim anything.
_MOST = 1e18


@dataclass(frozen=True, slots=True)
class HostProfile:
    """``bandwidth`` and ``peak`` by thread count: bytes/s of reading memory, operations/s of the fastest type.

    ``gpus``: names and bytes, in the order of their indices. ``links``: what was measured of the ways to them.
    """

    host_id: str
    cpu: str
    usable_cpus: int
    memory_bytes: int
    gpus: tuple[tuple[str, int], ...]
    bandwidth: Mapping[int, float]
    peak: Mapping[int, float]
    links: tuple[LinkCosts, ...] = ()


def export_host(path: Path, machine: Host, roofs: Ceilings, links: Sequence[LinkCosts] = ()) -> None:
    """Writes ``machine`` with its measured ``roofs`` and ``links`` to ``path``; whole, or not at all.

    Raises:
        UserError: the place cannot be written.
    """
    bandwidth: dict[int, float] = {}
    peak: dict[int, float] = {}
    for item in roofs.items:
        if item.value:
            limits = bandwidth if item.name == READ_BANDWIDTH else peak
            limits[item.threads] = max(float(item.value), limits.get(item.threads, 0.0))
    document = {
        "kbench_host": SCHEMA_VERSION,
        "host_id": machine.host_id,
        "cpu": machine.cpu.model,
        "usable_cpus": machine.usable_cpus,
        "memory_bytes": machine.usable_memory_bytes,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_total_bytes} for gpu in machine.gpus],
        "read_bandwidth": bandwidth,
        "arithmetic_peak": peak,
    }
    if links:
        document[_LINKS] = [
            {name: value for name, value in costs.as_dict().items() if value is not None} for costs in links
        ]
    write_whole(path, yaml.safe_dump(document, sort_keys=False).encode())


def read_host_profile(path: Path) -> HostProfile:
    """The machine in the file at ``path``.

    Raises:
        UserError: there is no such file, or it is not what `kbench doctor --export` writes.
    """
    data = load_yaml(path)
    if not isinstance(data, Lines) or set(data) - {_LINKS} != set(_FIELDS):
        raise UserError("no host profile", where=str(path), accepted=f"exactly {', '.join(_FIELDS)}", todo=_EXPORT)
    if data["kbench_host"] != SCHEMA_VERSION:
        raise UserError(f"kbench_host {data['kbench_host']}", where=str(path), accepted=str(SCHEMA_VERSION))

    def fail(name: str, accepted: str) -> UserError:
        return UserError(f"{name} is {data[name]!r}", where=f"{path}:{data.line_of(name)}", accepted=accepted)

    def count(name: str) -> int:
        if not _is_number(data[name]) or data[name] != int(data[name]):
            raise fail(name, "a positive whole number")
        return int(data[name])

    def limits(name: str) -> dict[int, float]:
        given = data[name]
        right = isinstance(given, Mapping) and given and all(isinstance(n, int) and n > 0 for n in given)
        if not right or not all(_is_number(value) for value in given.values()):
            raise fail(name, "positive numbers by thread count")
        return {int(n): float(value) for n, value in given.items()}

    for name in ("host_id", "cpu"):
        if not isinstance(data[name], str) or not data[name].isprintable():  # a terminal would obey it
            raise fail(name, "one line of printable text")
    gpus = data["gpus"]
    if not isinstance(gpus, list) or not all(_is_gpu(gpu) for gpu in gpus):
        raise fail("gpus", "a list of name and memory_bytes")
    links = data.get(_LINKS, [])
    if not isinstance(links, list) or not all(_is_link(link) for link in links):
        raise fail(_LINKS, f"a list of device and positive numbers: {', '.join(LINK_NAMES)}")
    return HostProfile(
        host_id=data["host_id"],
        cpu=data["cpu"],
        usable_cpus=count("usable_cpus"),
        memory_bytes=count("memory_bytes"),
        gpus=tuple((gpu["name"], int(gpu["memory_bytes"])) for gpu in gpus),
        bandwidth=limits("read_bandwidth"),
        peak=limits("arithmetic_peak"),
        links=tuple(
            LinkCosts(link["device"], {name: (float(link[name]),) for name in LINK_NAMES if name in link})
            for link in links
        ),
    )


_EXPORT = "run kbench doctor --export FILE.yaml on that machine"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MOST


def _is_link(link: Any) -> bool:
    if not isinstance(link, Mapping) or set(link) - {"device", *LINK_NAMES} or "device" not in link:
        return False
    numbers = [value for name, value in link.items() if name != "device"]
    # A wait may cost nothing that the clock sees.
    return isinstance(link["device"], str) and all(value == 0 or _is_number(value) for value in numbers)


def _is_gpu(gpu: Any) -> bool:
    if not isinstance(gpu, Mapping) or set(gpu) != {"name", "memory_bytes"}:
        return False
    return isinstance(gpu["name"], str) and gpu["name"].isprintable() and _is_number(gpu["memory_bytes"])
