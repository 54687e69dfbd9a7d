"""Sides that take turns, each in a process of its own, and what is made of their times.

A *side* is this interpreter running a script with ``--serve``: it loads what it needs, prints one JSON line about
itself, and then answers each JSON line on stdin (a request) with one on stdout (a list of seconds). A side may offer
several *variants* of its turn over one copy of the weights.

A side is stopped (SIGSTOP) while it is not its turn: threads that spin while they wait disturb nobody.

Sides take turns A B C, C B A, A B C, ..., so that a slow stretch of the machine hits all of them and a drift cancels.
Where they do not fit the memory together, one is loaded at a time and does a few turns per visit::

    visit 2:   A A  B B | B B  A A | A A  B B | ...       pairs: first A with first B, second A with second B, ...

Figures are medians over pairs of ratios of rates, with the order-statistic interval that covers the true median with
>= 95 %; with ``--store`` they are also appended to a results folder as records (``kbench.results``).
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from kbench.measure import median, median_interval
from kbench.results import Record, Store

Turn = Callable[[Mapping[str, Any]], Any]
Rates = dict[tuple[str, str], list[list[float]]]

_PR_SET_PDEATHSIG = 1

# Left to everything else on the machine when it is decided whether all sides fit at once.
_SPARE_BYTES = 2 << 30


def serve(turns: Mapping[str, Turn], about: Mapping[str, Any]) -> None:
    """Answers requests until stdin ends; ``about`` (versions, settings) goes out first."""
    if sys.platform == "linux":
        # A side that is stopped when its parent dies would never read the end of its stdin.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    print(json.dumps({"about": dict(about), "variants": list(turns)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(turns[request["variant"]](request)), flush=True)


@dataclass
class Side:
    """One process that can be started and stopped.

    Attributes:
        name: what tables call it.
        arguments: of this interpreter.
        n_bytes: memory that it will take, about.
        about, variants: what it said of itself when it started last.
        peak_bytes: the most resident memory that it was seen with.
    """

    name: str
    arguments: list[str]
    n_bytes: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    _process: subprocess.Popen[str] | None = None
    _errors: Any = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        self._process = subprocess.Popen([sys.executable, *self.arguments], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, text=True)  # fmt: skip
        said = self._answer()
        self.about, self.variants = said["about"], said["variants"]
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
        assert self._process is not None and self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({**request, "variant": variant}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def stop(self) -> None:
        if self._process is None:
            return
        self.peak_bytes = max(self.peak_bytes, _peak_bytes(self._process.pid))
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._process = None

    def _answer(self) -> Any:
        """The next line that is JSON: libraries may talk on stdout too."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        self._errors.seek(0)
        tail = "".join(self._errors.readlines()[-20:])
        sys.exit(f"{self.name} ended: {' '.join(self.arguments)}\n{tail}")


def _peak_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def fit_at_once(sides: Iterable[Side]) -> bool:
    return sum(side.n_bytes for side in sides) + _SPARE_BYTES < psutil.virtual_memory().available


def take_turns(
    sides: Sequence[Side],
    n_pairs: int,
    request: Mapping[str, Any],
    warm_up: Mapping[str, Any],
    *,
    at_once: bool | None = None,
    visit: int = 2,
) -> Rates:
    """What every variant of every side answered, ``n_pairs`` times each, by (side, variant).

    ``warm_up`` is asked once, and thrown away, of each variant of a side that was just loaded. ``at_once`` None asks
    the free memory; ``visit`` is how many turns a side does before the next one is loaded in its place.
    """
    together = fit_at_once(sides) if at_once is None else at_once
    step = 1 if together else min(visit, n_pairs)
    answers: Rates = {}
    forwards = True
    for begin in range(0, n_pairs, step):
        for side in sides if forwards else reversed(sides):
            if not together:
                for other in sides:
                    if other is not side:
                        other.stop()
            if not side.running:
                side.start()
                for variant in side.variants:
                    side.ask(variant, warm_up)
            for _ in range(min(step, n_pairs - begin)):
                for variant in side.variants if forwards else reversed(side.variants):
                    answers.setdefault((side.name, variant), []).append(side.ask(variant, request))
        forwards = not forwards
    for side in sides:
        side.stop()
    return answers


@dataclass(frozen=True)
class Comparison:
    """One row of a table: rates of two sides, pair by pair; ``unit`` of the rates, higher is better."""

    op: str
    params: Mapping[str, int | float | str]
    ours: str
    theirs: str
    our_rates: tuple[float, ...]
    their_rates: tuple[float, ...]
    unit: str
    threads: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.our_rates, self.their_rates, strict=True)]

    def line(self) -> str:
        ratios = self.ratios
        interval = median_interval(ratios)
        return (
            f"{self.op:8} {self.ours:22} {median(self.our_rates):9.1f} {self.unit}   {self.theirs:22} "
            f"{median(self.their_rates):9.1f} {self.unit}   ratio {median(ratios):.3f} "
            f"[{interval.low:.3f}, {interval.high:.3f}]   {len(ratios)} pairs, {self.threads} threads"
        )

    def record(self) -> Record:
        """The ratios as samples; rates and what was compared beside them."""
        interval = median_interval(self.ratios)
        return Record.make(
            (f"paired_{self.op}", {**self.params, "against": self.theirs}),
            self.ours,
            threads=self.threads,
            result=_rounded(self.ratios),
            unit="ratio",
            direction="higher",
            extra={
                "rate_unit": self.unit,
                "our_rates": _rounded(self.our_rates),
                "their_rates": _rounded(self.their_rates),
                "interval": _rounded((interval.low, interval.high)),
                "coverage": round(interval.confidence, 4),
                **self.extra,
            },
        )


def _rounded(values: Iterable[float]) -> list[float]:
    """Five digits: more than any of these figures is worth."""
    return [float(f"{value:.5g}") for value in values]


def report(comparisons: Sequence[Comparison], store: str | None) -> None:
    """Prints one line each and, with a folder, appends them to its records of suite ``paired``."""
    for comparison in comparisons:
        print(comparison.line(), flush=True)
    if store and comparisons:
        Store(store).append([comparison.record() for comparison in comparisons], suite="paired")
