"""`kbench doctor`: the machine, what it can do at best, and what of kbench runs on it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kbench.core import InvalidEnvironment, UserError, format_bytes
from kbench.measure import READ_BANDWIDTH, Ceilings, Guard, Host, ceilings, export_host, host, thread_ladder
from kbench.results import Record, Store

from .doctor_links import measured_links, show_links, store_links
from .output import print_json, progress_bar, stdout_console

# Seconds of one probe and how often each is repeated.
_FULL, _QUICK = (0.2, 3), (0.05, 1)

# Module -> distribution and how it is installed: engines and kernels that kbench can be compared with.
_PEERS = {
    "llama_cpp": ("llama-cpp-python", "pip install llama-cpp-python"),
    "ik_llama_cpp": ("ik-llama-cpp-python", "pip install --no-deps ik-llama-cpp-python"),
    "kt_kernel": ("kt-kernel", "pip install --no-deps kt-kernel"),
    "triton": ("triton", "comes with a CUDA build of torch"),
    "vllm": ("vllm", "pip install vllm (needs CUDA): Marlin's own kernels"),
    "sgl_kernel": ("sgl-kernel", "pip install sgl-kernel (needs CUDA): Marlin's own kernels"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Something that runs here or does not, and why; ``tests`` says how it is tested, where that is not obvious."""

    name: str
    runnable: bool
    summary: str
    reason: str = ""
    tests: str = ""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command(
        help="Show this machine, its measured ceilings, and what runs on it (or why not).\n\n"
        "Example: kbench doctor --quick",
    )
    def doctor(
        quick: bool = typer.Option(False, "--quick", help="Shorter probes: a first look in about two seconds."),
        export: Annotated[
            Path | None, typer.Option(help="Also write this machine to FILE.yaml, for kbench tune --host elsewhere.")
        ] = None,
        as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        machine = host()
        from kbench.kernels import support_table

        guard = Guard()
        roofs, roof_reason = _measure(machine, quick)
        links = measured_links(machine, quick)
        warnings = list(guard.warnings())
        stored = ""
        if roofs is not None:
            try:
                stored = _store(roofs, quick, warnings)
                store_links(machine, links)
            except UserError as error:  # what was measured is shown even if it cannot be kept
                warnings.append(error.message)
        if export is not None:
            if roofs is None:
                raise InvalidEnvironment(f"nothing to export: {roof_reason}")
            export_host(export, machine, roofs, links)
        parts, peers, types = _implementations(), _peers(), support_table()
        if as_json:
            print_json(
                "doctor",
                1,
                {
                    "host_id": machine.host_id,
                    "host": machine.as_dict(),
                    "ceilings": None if roofs is None else roofs.as_dict(),
                    "ceilings_reason": roof_reason,
                    "links": [costs.as_dict() for costs in links],
                    "implementations": [_as_dict(part) for part in parts],
                    "support": types,
                    "peers": [_as_dict(part) for part in peers],
                    "warnings": warnings,
                    "records_path": stored or None,
                },
            )
            return
        console = stdout_console()
        _show_host(console, machine)
        _show_ceilings(console, roofs, roof_reason)
        show_links(console, links)
        _show_parts(console, "Implementations", parts, ("runnable", "not runnable"))
        _show_support(console, types)
        _show_parts(console, "Peers", peers, ("installed", "not installed"))
        console.print()
        for warning in warnings:
            console.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
        if stored:
            console.print(Text(f"ceilings stored under {stored}", style="dim"), soft_wrap=True)


def _measure(machine: Host, quick: bool) -> tuple[Ceilings | None, str]:
    """Measured ceilings, or why there are none."""
    from kbench.kernels import native_probes

    seconds, repetitions = _QUICK if quick else _FULL
    threads = machine.usable_cpus
    # Four caches: each pass leaves at most a quarter of the buffer behind. At most a quarter of free memory.
    free = machine.memory.available_bytes or machine.memory.total_bytes or 1 << 30
    n_bytes = min(max(256 << 20, 4 * machine.llc_bytes), free // 4)
    try:
        probes = native_probes(threads, cpus=machine.pin_cpus, n_bytes=n_bytes, seconds=seconds)
    except InvalidEnvironment as error:
        return None, error.message
    counts = sorted({1, threads}) if quick else thread_ladder(threads)
    with progress_bar() as bar:
        task = bar.add_task("measuring ceilings")

        def advance(n_done: int, n_all: int, what: str) -> None:
            bar.update(task, completed=n_done, total=n_all, description=f"measuring {what}")

        return ceilings(probes, counts, repetitions=repetitions, progress=advance), ""


def _store(roofs: Ceilings, quick: bool, warnings: list[str]) -> str:
    """Appends one record per ceiling; returns the folder."""
    records = []
    for item in roofs.items:
        bandwidth = item.name == READ_BANDWIDTH
        records.append(
            Record.make(
                (READ_BANDWIDTH, {}) if bandwidth else ("arithmetic_peak", {"kind": item.name}),
                roofs.probes,
                threads=item.threads,
                result=item.samples,
                unit=item.unit,
                direction="higher",
                status="ok" if item.samples else "unsupported",
                reason=item.reason,
                extra={"quick": quick, "warnings": warnings},
            )
        )
    store = Store()
    store.append(records, suite="doctor")
    return str(store.path(records[0], "doctor"))


def _implementations() -> list[Part]:
    from kbench.kernels import implementations

    parts = []
    for item in implementations():
        support = item.runnable()
        parts.append(Part(item.name, support.ok, item.summary, support.reason, getattr(item, "tests", "")))
    return parts


def _peers() -> list[Part]:
    parts = []
    for module, (distribution, hint) in _PEERS.items():
        try:
            found = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            found = False
        try:
            version = metadata.version(distribution) if found else ""
        except metadata.PackageNotFoundError:
            version = ""
        parts.append(Part(distribution, found, version, "" if found else hint))
    return parts


def _as_dict(part: Part) -> dict[str, Any]:
    fields = {"name": part.name, "runnable": part.runnable, "summary": part.summary, "reason": part.reason}
    return {**fields, "tests": part.tests} if part.tests else fields


# Columns of a label: the longest name of a peer.
_LABEL = 19


def _heading(console: Console, title: str) -> None:
    console.print()
    if console.is_terminal:
        console.print(Rule(Text(title, style="bold"), align="left", style="dim"))
    else:
        console.print(title)


def _row(console: Console, label: str, value: Text | str) -> None:
    """One labelled value; long ones hang under themselves on a terminal, and stay one line in a pipe."""
    indent = _LABEL + 4
    text = Text(value) if isinstance(value, str) else value
    lines = text.wrap(console, console.width - indent) if console.is_terminal else [text]
    for i, line in enumerate(lines):
        line.rstrip()
        head = Text(f"  {label:<{_LABEL}}  " if i == 0 else " " * indent, style="cyan")
        console.print(Text.assemble(head, line), soft_wrap=True)


def _show_host(console: Console, machine: Host) -> None:
    console.print(Text.assemble(("kbench doctor", "bold"), f"  host {machine.host_id}  {machine.system}"))
    for title, rows in _host_groups(machine).items():
        _heading(console, title)
        for name, value in rows.items():
            _row(console, name, value)


def _host_groups(machine: Host) -> dict[str, Mapping[str, str]]:
    cpu, memory, limits = machine.cpu, machine.memory, machine.cgroup
    sockets = f"{cpu.n_sockets} socket{'s' if cpu.n_sockets > 1 else ''}"
    smt = f"SMT on, {cpu.n_logical_cpus} logical CPUs" if cpu.smt else "SMT off"
    caches = [
        f"{cache.name} {format_bytes(cache.n_bytes)}" + (f" × {n}" if (n := len(cache.instances)) > 1 else "")
        for cache in cpu.caches
    ]
    nodes = [
        f"node {node.index}: CPUs {_ranges(node.cpus)}"
        + (f", {format_bytes(node.memory_bytes)}" if node.memory_bytes and len(cpu.numa) > 1 else "")
        for node in cpu.numa
    ]
    model = f"{cpu.vendor} {cpu.model.removeprefix(cpu.vendor).strip()}".strip()
    quota = f"{limits.cpu_quota:g} CPUs" if limits.cpu_quota else "none"
    limit = limits.memory_limit_bytes
    huge = f"transparent: {memory.thp or 'unknown'}"
    if memory.free_huge_pages:
        huge += f"; {memory.free_huge_pages} reserved of {format_bytes(memory.huge_page_bytes)} free"
    groups: dict[str, Mapping[str, str]] = {
        "CPU": {
            "model": model + (", virtual" if cpu.virtual else ""),
            "cores": f"{cpu.n_physical_cores} physical, {sockets}, {smt}",
            "instructions": " ".join(cpu.flags) or "unknown",
            "caches": ", ".join(caches) or "unknown",
            "NUMA": "; ".join(nodes) or "unknown",
        },
        "Use": {
            "threads": f"{machine.usable_cpus}, pinned to CPUs {_ranges(machine.pin_cpus)}",
            "affinity": f"CPUs {_ranges(machine.affinity)}",
            "CPU quota": quota,
            "memory limit": format_bytes(limit) if limit is not None else "none",
        },
        "Memory": {
            "total": format_bytes(memory.total_bytes),
            "available": format_bytes(memory.available_bytes),
            "huge pages": huge,
        },
        "GPU": {
            f"cuda:{gpu.index}": f"{gpu.name}, {format_bytes(gpu.memory_free_bytes)} of "
            f"{format_bytes(gpu.memory_total_bytes)} free, compute {gpu.compute_capability}, driver {gpu.driver}"
            for gpu in machine.gpus
        }
        or {"none": machine.gpu_reason},
        "Software": {"versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items())},
    }
    if machine.variables:
        groups["Software"] = {
            **groups["Software"],
            "environment": " ".join(f"{name}={value}" for name, value in machine.variables.items()),
        }
    return groups


def _ranges(cpus: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) as ``0-2,5``."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


# Columns of the longest bar.
_BAR = 24


def _show_ceilings(console: Console, roofs: Ceilings | None, reason: str) -> None:
    _heading(console, "Measured ceilings")
    if roofs is None:
        console.print(Text(f"  not measured: {reason}"), soft_wrap=True)
        return
    best = roofs.best(READ_BANDWIDTH)
    top = best.value if best is not None and best.value else 0.0
    kinds = list(dict.fromkeys(item.name for item in roofs.items if item.name != READ_BANDWIDTH))
    utf8 = (console.encoding or "").lower().startswith("utf")
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("  threads", justify="right")
    table.add_column("read GB/s", justify="right")
    table.add_column("", no_wrap=True, style="green")
    for kind in kinds:
        table.add_column(f"{kind} Gop/s", justify="right")
    for threads in sorted({item.threads for item in roofs.items}):
        item = roofs.get(READ_BANDWIDTH, threads)
        value = item.value if item is not None else None
        bar = ("█" if utf8 else "#") * round(_BAR * value / top) if value and top else ""
        cells = [_peak(roofs, kind, threads) for kind in kinds]
        table.add_row(str(threads), f"{value / 1e9:.1f}" if value else "-", bar, *cells)
    console.print(table)
    console.print(Text(f"  read-only bandwidth beyond the caches, register peaks; by {roofs.probes}", style="dim"))
    for text in sorted({f"  {item.name}: {item.reason}" for item in roofs.items if item.reason}):
        console.print(Text(text, style="dim"))


def _peak(roofs: Ceilings, kind: str, threads: int) -> str:
    item = roofs.get(kind, threads)
    return "" if item is None else "-" if item.value is None else f"{item.value / 1e9:,.0f}"


def _show_parts(console: Console, title: str, parts: list[Part], words: tuple[str, str]) -> None:
    """``words``: how a part that is there and one that is not are called."""
    _heading(console, title)
    for part in parts:
        state = (words[0], "green") if part.runnable else (f"{words[1]}:", "yellow")
        detail = part.summary if part.runnable else part.reason
        tests = f"; tests: {part.tests}" if part.tests else ""
        _row(console, part.name, Text.assemble(state, "  ", detail, (tests, "dim")))


def _show_support(console: Console, types: Mapping[str, Mapping[str, str]]) -> None:
    """The storage types, those that are read alike together, and by what the implementations that run here do it."""
    _heading(console, "Storage types of weights")
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, kernels in types.items():
        groups.setdefault(tuple(kernels.items()), []).append(name)
    for items, names in groups.items():
        by_kernel: dict[str, list[str]] = {}
        for name, kernel in items:
            by_kernel.setdefault(kernel, []).append(name.removeprefix("cpu."))
        told = [f"{_kernel(kernel)}: {' '.join(users)}" for kernel, users in by_kernel.items() if kernel]
        console.print(Text(f"  {' '.join(names)}", style="cyan"), soft_wrap=True)
        console.print(Text(f"      {'; '.join(told)}"), soft_wrap=True)
    console.print(Text("  dequantised: correct, but weights become floats first", style="dim"))


def _kernel(kernel: str) -> str:
    from kbench.kernels import DEQUANTISED, OWN

    return {OWN: "own kernel", DEQUANTISED: DEQUANTISED}.get(kernel, f"kernel of {kernel.removeprefix('cpu.')}")
