"""Costs of a link to a GPU: what a made-up one costs is found again; torch's own runs, here on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbench.core import UserError
from kbench.kernels import TorchLink, cuda_links
from kbench.measure import (
    LAUNCH,
    LINK_NAMES,
    REPLAY,
    SYNC,
    Ceiling,
    Ceilings,
    Clock,
    LinkCosts,
    export_host,
    host,
    link_costs,
    read_host_profile,
)

GB = 1e9
RATES = {
    ("pinned", "to_device"): 25 * GB, ("pinned", "from_device"): 20 * GB, ("pageable", "to_device"): 9 * GB,
    ("pageable", "from_device"): 6 * GB,
}  # fmt: skip


class MadeUp:
    """A device with a queue of its own: copies of 10 us and their bytes, kernels of 1 us, launches of 4, replays of 2,
    waits of 7."""

    name = "cuda:0"

    def __init__(self, graphs: bool = True) -> None:
        self.host_ns = 0.0  # what the caller's clock shows
        self.idle_ns = 0.0  # when the device has done everything
        self._graphs = graphs

    def _queue(self, host_us: float, device_us: float) -> None:
        self.host_ns += 1000 * host_us
        self.idle_ns = max(self.idle_ns, self.host_ns) + 1000 * device_us

    def copy(self, n_bytes: int, memory: str, direction: str) -> Callable[[], None]:
        return lambda: self._queue(1, 10 + n_bytes / RATES[memory, direction] * 1e6)

    def launch(self) -> Callable[[], None]:
        return lambda: self._queue(4, 1)

    def replay(self) -> Callable[[], None] | None:
        return (lambda: self._queue(2, 1)) if self._graphs else None

    def wait(self) -> None:
        self.host_ns = max(self.host_ns, self.idle_ns) + 7000


def costs(graphs: bool = True) -> LinkCosts:
    link = MadeUp(graphs)
    return link_costs(link, repetitions=3, clock=Clock(lambda: round(link.host_ns), 0.0))


def test_what_a_link_costs_is_found_again() -> None:
    found = costs()
    for (memory, direction), rate in RATES.items():
        assert found.value(f"{memory}_{direction}_bandwidth") == pytest.approx(rate, rel=1e-3)
        small = 4096 / rate
        assert found.value(f"{memory}_{direction}_latency") == pytest.approx(18e-6 + small, rel=1e-3)
    # One wait and one kernel are shared by 200 launches.
    assert found.value(LAUNCH) == pytest.approx(4e-6 + 8e-6 / 200, rel=1e-3)
    assert found.value(REPLAY) == pytest.approx(2e-6 + 8e-6 / 200, rel=1e-3)
    assert found.value(SYNC) == pytest.approx(8e-6, rel=1e-2)


def test_a_transfer_is_pinned_and_waited_for_the_slower_way() -> None:
    found = costs().transfer_seconds(2e9)
    assert found == pytest.approx(18e-6 + 0.1, rel=1e-3)
    assert LinkCosts("cuda:0", {}).transfer_seconds(1) is None


def test_without_graphs_there_is_no_replay() -> None:
    assert costs(graphs=False).value(REPLAY) is None
    assert set(costs().as_dict()) == {"device", *LINK_NAMES}


def test_torch_on_the_cpu_is_measured_alike() -> None:
    """The code that a GPU runs, on the device that is here; what the numbers are is the machine's."""
    found = link_costs(TorchLink("cpu"), repetitions=1)
    assert all(found.value(name) is not None for name in LINK_NAMES if "latency" in name)
    assert found.value(LAUNCH) and found.value(REPLAY) is None
    assert cuda_links(0) == []


def test_links_travel_with_the_host(tmp_path: Path) -> None:
    roofs = Ceilings("test", (Ceiling("read_bandwidth", 1, "bytes/s", (1e10,)), Ceiling("int8", 1, "op/s", (1e12,))))
    path = tmp_path / "host.yaml"
    export_host(path, host(), roofs)
    assert "links" not in path.read_text() and read_host_profile(path).links == ()
    export_host(path, host(), roofs, [costs()])
    (read,) = read_host_profile(path).links
    assert read.as_dict() == costs().as_dict()
    path.write_text(path.read_text().replace("  launch:", "  lunch:"))
    with pytest.raises(UserError, match="links"):
        read_host_profile(path)
