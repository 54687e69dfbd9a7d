"""What `kbench doctor` measures, stores and shows of the ways to GPUs; nothing where there are none."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kbench.measure import LAUNCH, LINK, LINK_NAMES, REPLAY, SYNC, Host, LinkCosts, link_costs, unit_of
from kbench.results import Record, Store


def measured_links(machine: Host, quick: bool) -> list[LinkCosts]:
    """Of each GPU that torch finds."""
    from kbench.kernels import cuda_links

    return [link_costs(link, repetitions=3 if quick else 9) for link in cuda_links(len(machine.gpus))]


def store_links(machine: Host, links: Sequence[LinkCosts]) -> None:
    """Appends one record a reading, with the GPU's name: another card in its place has other numbers."""
    names = {f"cuda:{gpu.index}": gpu.name for gpu in machine.gpus}
    records = [
        Record.make(
            (LINK, {"what": name}),
            "torch",
            device=costs.device,
            result=costs.samples[name],
            unit=unit_of(name),
            direction="higher" if unit_of(name) == "bytes/s" else "lower",
            extra={"gpu": names.get(costs.device, "")},
        )
        for costs in links
        for name in LINK_NAMES
        if name in costs.samples
    ]
    if records:
        Store().append(records, suite="doctor")


def show_links(console: Console, links: Sequence[LinkCosts]) -> None:
    if not links:
        return
    console.print()
    console.print("Measured links to GPUs")
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("  ")
    for costs in links:
        table.add_column(costs.device, justify="right")
    for name in LINK_NAMES:
        what = {LAUNCH: "kernel launch", REPLAY: "graph replay", SYNC: "wait for the device"}.get(name, name)
        table.add_row(f"  {what.replace('_', ' ')}", *(_shown(name, costs.value(name)) for costs in links))
    console.print(table)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e9:.1f} GB/s" if unit_of(name) == "bytes/s" else f"{value * 1e6:.1f} us"
