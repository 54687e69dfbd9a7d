"""The most memory that a process ever had resident."""

from __future__ import annotations


def peak_resident_bytes(pid: int | None = None) -> int:
    """Of process ``pid``, by default this one; 0 where nothing tells it.

    ``VmHWM`` begins with the program: ``getrusage`` would tell what the process was before it became this program.
    """
    try:
        with open(f"/proc/{'self' if pid is None else pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")), 0)
    except OSError:
        return 0
