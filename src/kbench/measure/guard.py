"""Whether the machine was left alone while something was measured.

A guard looks at the kernel's counters before and after; what it finds is told to the user and stored with the
results. It changes nothing and stops nothing. What it finds may be worth a *warning*, or *bad*: so much that what was
measured meanwhile is thrown away and measured again.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from kbench.core import kernelfile, read_cgroup

from .gpu_state import gpu_states

# Shares of all CPU time. Steal beyond 2 % shows in a median; other processes' 10 % is what a desktop idles at.
MAX_STEAL = 0.02
MAX_OTHERS = 0.10

# Beyond these, samples are no longer of what they are meant to be: a tenth stolen is five times what shows, a third of
# the CPUs lost leaves too little for the threads that were asked for.
BAD_STEAL = 0.10
BAD_OTHERS = 0.33
# Shares of the time: stopped by a quota; some process waiting for memory to be reclaimed (pressure stall information).
BAD_THROTTLED = 0.02
BAD_STALLED = 0.05

# A process is named when it used this share of one CPU.
_HOG = 0.10

# Counters advance in ticks of 10 ms: over less time than this they say nothing.
_MIN_TICKS = 20


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Counters in clock ticks, summed over CPUs."""

    total: int
    busy: int
    steal: int
    own: int
    processes: dict[int, tuple[str, int]]
    throttled_seconds: float
    stalled_seconds: float
    n_hot: int
    seconds: float


class Guard:
    """Watches from construction (or ``restart``) on.

    Args:
        root: of ``/proc`` and ``/sys``; other roots are for tests.
        pid: the process whose own work is no disturbance, with its children.
    """

    def __init__(self, root: Path = Path("/"), pid: int | None = None) -> None:
        self._root, self._pid = root, os.getpid() if pid is None else pid
        self._begin = self._look()

    def restart(self) -> None:
        self._begin = self._look()

    def warnings(self) -> tuple[str, ...]:
        """What disturbed the time since the start, in words; empty when nothing did or nothing can be known."""
        a, b = self._begin, self._look()
        found = []
        total = b.total - a.total
        if total >= _MIN_TICKS:
            steal = (b.steal - a.steal) / total
            others = (b.busy - a.busy - (b.own - a.own)) / total
            if steal > MAX_STEAL:
                found.append(f"the hypervisor took {steal:.0%} of the CPU time (steal): results may be slow")
            if others > MAX_OTHERS:
                found.append(f"other processes used {others:.0%} of the CPU time{self._hogs(a, b)}")
        throttled = b.throttled_seconds - a.throttled_seconds
        if throttled > 0:
            found.append(f"the control group's CPU quota stopped this process for {throttled:.2f} s: use fewer threads")
        return tuple(found)

    def bad(self) -> tuple[str, ...]:
        """Why what was measured since the start should be measured again; empty when it need not."""
        a, b = self._begin, self._look()
        found = []
        total, seconds = b.total - a.total, max(b.seconds - a.seconds, 1e-9)
        if total >= _MIN_TICKS:
            steal, others = (b.steal - a.steal) / total, (b.busy - a.busy - (b.own - a.own)) / total
            if steal > BAD_STEAL:
                found.append(f"the hypervisor took {steal:.0%} of the CPU time")
            if others > BAD_OTHERS:
                found.append(f"other processes used {others:.0%} of the CPU time{self._hogs(a, b)}")
        for what, stopped, most in (
            ("the control group's CPU quota stopped this process", b.throttled_seconds - a.throttled_seconds,
             BAD_THROTTLED),
            ("processes waited for memory", b.stalled_seconds - a.stalled_seconds, BAD_STALLED),
        ):  # fmt: skip
            if stopped > most * seconds:
                found.append(f"{what} for {min(1.0, stopped / seconds):.0%} of the time")
        if b.n_hot > a.n_hot:
            found.append("a CPU slowed itself down because it was hot")
        found += [
            f"GPU {gpu.index} was slowed by {' and '.join(gpu.slowed_by)}" for gpu in gpu_states() if gpu.slowed_by
        ]
        return tuple(found)

    def _hogs(self, a: _Snapshot, b: _Snapshot) -> str:
        n_cpus = max(1, len(re.findall(r"^cpu\d+ ", kernelfile.read(self._root / "proc/stat"), re.MULTILINE)))
        one_cpu = (b.total - a.total) / n_cpus
        used = [
            ((ticks - a.processes.get(pid, (name, ticks))[1]) / one_cpu, name)
            for pid, (name, ticks) in b.processes.items()
        ]
        top = [f"{name} {share:.0%}" for share, name in sorted(used, reverse=True)[:3] if share >= _HOG]
        return f" ({', '.join(top)} of one CPU)" if top else ""

    def _look(self) -> _Snapshot:
        proc = self._root / "proc"
        # "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guest is counted in user already.
        fields = [int(n) for n in re.findall(r"\d+", kernelfile.read(proc / "stat").partition("\n")[0])[:8]]
        fields += [0] * (8 - len(fields))
        idle, steal = fields[3] + fields[4], fields[7]
        own, processes = 0, {}
        parents: dict[int, int] = {}
        waited: dict[int, int] = {}
        for path in proc.glob("[0-9]*/stat"):
            # "pid (name) state ppid ..."; the name may hold blanks and brackets, so cut at the last bracket.
            head, _, tail = kernelfile.read(path).rpartition(")")
            rest = tail.split()
            if len(rest) < 15 or not path.parent.name.isdigit():
                continue
            pid = int(path.parent.name)
            parents[pid] = int(rest[1])
            processes[pid] = (head.partition("(")[2], int(rest[11]) + int(rest[12]))
            waited[pid] = int(rest[13]) + int(rest[14])
        for pid in list(processes):
            if self._is_ours(pid, parents):
                own += processes.pop(pid)[1] + waited[pid]  # what its ended children took is still ours
        return _Snapshot(
            sum(fields), sum(fields) - idle - steal, steal, own, processes, read_cgroup(self._root).throttled_seconds,
            self._stalled_seconds(), self._n_hot(), time.monotonic(),
        )  # fmt: skip

    def _stalled_seconds(self) -> float:
        found = re.search(
            r"^some .*total=(\d{1,18})", kernelfile.read(self._root / "proc/pressure/memory"), re.MULTILINE
        )
        return int(found[1]) * 1e-6 if found else 0.0

    def _n_hot(self) -> int:
        counts = (self._root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        return sum(kernelfile.read_int(path) or 0 for path in counts)

    def _is_ours(self, pid: int, parents: dict[int, int]) -> bool:
        for _ in range(64):  # no deeper tree is ours; a cycle in a made-up one ends here too
            if pid == self._pid:
                return True
            if pid not in parents:
                return False
            pid = parents[pid]
        return False
