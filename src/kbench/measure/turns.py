"""Sides that take turns, each in a process of its own.

A *side* is a Python program that loads what it needs, prints one JSON line about itself, and then answers each JSON
line on stdin (a request) with one on stdout (``serve``). It may offer several *variants* of its turn over one copy of
the weights. It is stopped (SIGSTOP) while it is not its turn: threads that spin while they wait disturb nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kbench.core import CheckBroken, CorruptFile, InvalidEnvironment, KbenchError, Unsupported, UserError

from .peak_memory import peak_resident_bytes

Turn = Callable[[Mapping[str, Any]], Any]
# What every variant of every side answered, by (side, variant).
Answers = dict[tuple[str, str], list[Any]]

# What a side's error is here, by its name there; of any other name it is CheckBroken. Memory that does not do is what
# this machine cannot: exit code 1, a condition that fails, is for sides that were compared.
_RAISED: Mapping[str, type[KbenchError]] = {
    **{each.__name__: each for each in (UserError, CorruptFile, Unsupported, InvalidEnvironment)},
    "OverBudget": InvalidEnvironment,
}

_PR_SET_PDEATHSIG = 1

# Left to everything else on the machine when it is decided whether all sides fit at once.
_SPARE_BYTES = 2 << 30
# For one answer: loading the largest file from a slow disk takes minutes.
ANSWER_SECONDS = 900.0
# Lines of a side's stderr that an error quotes.
_QUOTED_LINES = 8


def serve(turns: Mapping[str, Turn], about: Mapping[str, Any]) -> None:
    """Answers requests until stdin ends; ``about`` (versions, settings) goes out first. What a turn raises is an answer
    too, and the side lives on."""
    if sys.platform == "linux":
        # A side that is stopped when its parent dies would never read the end of its stdin.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    print(json.dumps({"about": dict(about), "variants": list(turns)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = turns[request["variant"]](request)
        except Exception as error:
            answer = _said(error)
        print(json.dumps(answer), flush=True)


def refuse(error: KbenchError) -> None:
    """Says, in place of ``serve``, why this side cannot start: ``Side.start`` raises it in the other process."""
    print(json.dumps(_said(error)), flush=True)


def _said(error: Exception) -> dict[str, Any]:
    """What ``error`` is, for the other process; a KbenchError's text keeps its parts."""
    if isinstance(error, KbenchError):
        parts = {name: getattr(error, name) for name in ("found", "where", "accepted", "todo")}
        return {"failed": type(error).__name__, **parts}
    traceback.print_exc()
    return {"failed": type(error).__name__, "found": f"{type(error).__name__}: {error}"}


def _raised(said: Mapping[str, Any], side: str) -> KbenchError:
    """The error that ``said`` tells of, as one of ``side``."""
    found, where, accepted, todo = (str(said.get(name, "")) for name in ("found", "where", "accepted", "todo"))
    kind = _RAISED.get(str(said["failed"]), CheckBroken)
    return kind(found, where=f"{side}: {where}" if where else side, accepted=accepted, todo=todo)


@dataclass
class Side:
    """One process that can be started and stopped.

    Attributes:
        name: what tables and messages call it.
        command: arguments of the interpreter, or, with ``python``, of another one.
        n_bytes: memory that it will take, about.
        environment: variables beside this process's own.
        folder: where it runs; by default where this process does.
        about, variants: what it said of itself when it started last.
        peak_bytes: the most resident memory that it was seen with.
    """

    name: str
    command: Sequence[str]
    n_bytes: int = 0
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    _ready: bool = False
    _process: subprocess.Popen[str] | None = None
    _errors: Any = None

    def __enter__(self) -> Side:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None

    def launch(self) -> None:
        """Starts the process and does not wait: of several sides, each imports what it needs while the others do."""
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        self._process = subprocess.Popen(
            [self.python, *self.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, env={**os.environ, **self.environment}, cwd=self.folder,
        )  # fmt: skip

    def start(self) -> None:
        """Starts the process, unless it was, and reads what it says of itself.

        Raises:
            CheckBroken: it ended before it said anything.
            KbenchError: what it refuses to start for (``refuse``).
        """
        if self._ready:
            return
        self.launch()
        assert self._process is not None
        try:
            said = self._answer()
            if isinstance(said, dict) and "failed" in said:
                raise _raised(said, self.name)
            if not isinstance(said, dict) or "about" not in said:
                raise CheckBroken(f"it said {json.dumps(said)[:200]}", where=self.name)
        except KbenchError:
            self.stop()
            raise
        self.about, self.variants = said["about"], said["variants"]
        self._process.send_signal(signal.SIGSTOP)
        self._ready = True

    def ask(self, variant: str, request: Mapping[str, Any]) -> Any:
        """The answer of one turn; what the turn raised is an object with ``failed``.

        Raises:
            CheckBroken: the process died, or was silent for ``ANSWER_SECONDS``.
        """
        assert self._process is not None and self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({**request, "variant": variant}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        answer = self._answer()
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def stop(self) -> None:
        if self._process is None:
            return
        self._ready = False
        self.peak_bytes = max(self.peak_bytes, peak_resident_bytes(self._process.pid))
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that nobody read
                    pipe.close()
        self._process = None

    def _answer(self) -> Any:
        """The next line that is JSON: libraries may talk on stdout too."""
        assert self._process is not None and self._process.stdout is not None
        silence = threading.Timer(ANSWER_SECONDS, self._process.kill)
        silence.start()
        try:
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):
                    return json.loads(line)
        finally:
            silence.cancel()
        raise self._ended()

    def _ended(self) -> CheckBroken:
        assert self._process is not None
        code = self._process.wait()
        self._errors.seek(0)
        tail = "".join(self._errors.readlines()[-_QUOTED_LINES:]).strip()
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return CheckBroken(f"its process ended ({ended})\n{tail}", where=self.name)


def fit_at_once(sides: Iterable[Side]) -> bool:
    """Whether the free memory takes all sides together."""
    return sum(side.n_bytes for side in sides) + _SPARE_BYTES < psutil.virtual_memory().available


@dataclass
class Turns:
    """Sides in the order A B C, C B A, A B C, ..., so that a slow stretch of the machine hits all of them and a drift
    cancels. Where they do not fit the memory together, one is loaded at a time and does a few turns per visit::

        visit 2:   A A  B B | B B  A A | A A  B B | ...       pairs: first A with first B, second A with second B, ...

    Attributes:
        warm_up: a request that is asked once, and thrown away, of each variant of a side that was just loaded.
        at_once: None asks the free memory.
        visit: how many turns a side does before the next one is loaded in its place.
    """

    sides: Sequence[Side]
    warm_up: Mapping[str, Any]
    at_once: bool | None = None
    visit: int = 2
    _forwards: bool = True

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self, n: int, request: Mapping[str, Any]) -> Answers:
        """``n`` answers of each variant of each side.

        Raises:
            CheckBroken: a side died, or a turn raised what is no KbenchError.
            KbenchError: what a side refused to start for, or a turn raised.
        """
        together = fit_at_once(self.sides) if self.at_once is None else self.at_once
        self.at_once = together
        step = 1 if together else max(1, min(self.visit, n))
        answers: Answers = {}
        for begin in range(0, n, step):
            for side in self.sides if self._forwards else reversed(self.sides):
                if not together:
                    for other in self.sides:
                        if other is not side:
                            other.stop()
                if not side.running:
                    side.start()
                    for variant in side.variants:
                        self._ask(side, variant, self.warm_up)
                for _ in range(min(step, n - begin)):
                    for variant in side.variants if self._forwards else reversed(side.variants):
                        answers.setdefault((side.name, variant), []).append(self._ask(side, variant, request))
            self._forwards = not self._forwards
        return answers

    def stop(self) -> None:
        """The next turns start every side anew."""
        for side in self.sides:
            side.stop()

    @staticmethod
    def _ask(side: Side, variant: str, request: Mapping[str, Any]) -> Any:
        answer = side.ask(variant, request)
        if isinstance(answer, dict) and "failed" in answer:
            raise _raised(answer, side.name)
        return answer
