"""What moved between devices: calls and bytes, by what moved, from where and to where."""

from __future__ import annotations

from dataclasses import dataclass, field

VALUES, CACHE, WEIGHTS = "values", "cache", "weights"


@dataclass(slots=True)
class Moved:
    """Calls and bytes."""

    calls: int = 0
    n_bytes: int = 0


@dataclass(slots=True)
class Traffic:
    """Sums since the session was made or ``clear`` was called.

    ``values`` are activations, as lowering's ``transfer`` calls move them; ``cache`` are keys and values that a phase
    needs on another device than the one that made them; ``weights`` those that layer-wise prefill brings in.
    """

    moved: dict[tuple[str, str, str], Moved] = field(default_factory=dict)

    def add(self, what: str, src: object, dst: object, n_bytes: int) -> None:
        entry = self.moved.setdefault((what, str(src), str(dst)), Moved())
        entry.calls += 1
        entry.n_bytes += n_bytes

    def calls(self, what: str = VALUES) -> int:
        return sum(entry.calls for key, entry in self.moved.items() if key[0] == what)

    def n_bytes(self, what: str = VALUES) -> int:
        return sum(entry.n_bytes for key, entry in self.moved.items() if key[0] == what)

    def clear(self) -> None:
        self.moved.clear()

    def plain(self) -> list[dict[str, object]]:
        """For printing and JSON."""
        return [
            {"what": what, "src": src, "dst": dst, "calls": entry.calls, "bytes": entry.n_bytes}
            for (what, src, dst), entry in sorted(self.moved.items())
        ]
