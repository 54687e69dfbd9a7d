"""Work in order, device by device: what the engine knows of streams.

The CPU's queue does everything at once, in the caller's thread. A CUDA device's is a stream. A device that is an alias
of the CPU has a thread, so that its work runs beside the CPU's and waits only where it is told to: a wait that is
missing shows, as it would on a GPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

Work = Callable[[], None]


class Mark(Protocol):
    """A point in a queue."""

    def block(self) -> None:
        """Returns once everything before it is done."""


class Queue(Protocol):
    """Work of one device, done in the order in which it is submitted."""

    def submit(self, work: Work) -> None:
        """Appends ``work``; raises nothing that ``work`` raises unless it is done at once."""

    def mark(self) -> Mark:
        """The point behind everything submitted so far."""

    def wait(self, mark: Mark) -> None:
        """What is submitted from now on begins after ``mark``, a point in another queue."""

    def drain(self) -> None:
        """Returns once everything is done; raises what the first work that failed raised."""


class _Done:
    def block(self) -> None:
        pass


_DONE = _Done()


class InlineQueue:
    """The caller's own thread."""

    def submit(self, work: Work) -> None:
        work()

    def mark(self) -> Mark:
        return _DONE

    def wait(self, mark: Mark) -> None:
        mark.block()

    def drain(self) -> None:
        pass


class _ThreadMark:
    def __init__(self) -> None:
        self._reached = threading.Event()
        self.block: Callable[[], object] = self._reached.wait
        self.reach = self._reached.set


class ThreadQueue:
    """A thread of its own, which ends with the queue or the process."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=_serve, args=(self._work, self._failure), name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._work.put(work)

    def mark(self) -> Mark:
        mark = _ThreadMark()
        # Not skipped after a failure: others wait for it.
        self._work.put(_Always(mark.reach))
        return mark  # type: ignore[return-value]

    def wait(self, mark: Mark) -> None:
        self._work.put(_Always(mark.block))

    def drain(self) -> None:
        self.mark().block()
        if self._failure:
            error = self._failure[0]
            self._failure.clear()
            raise error

    def __del__(self) -> None:
        self._work.put(None)


class _Always:
    def __init__(self, work: Callable[[], object]) -> None:
        self._call = work

    def __call__(self) -> None:
        self._call()


def _serve(work: queue.SimpleQueue[Work | None], failure: list[BaseException]) -> None:
    while (item := work.get()) is not None:
        # After a failure values are wrong: nothing more is computed from them.
        if failure and not isinstance(item, _Always):
            continue
        try:
            item()
        except BaseException as error:
            failure.append(error)


class _CudaMark:
    def __init__(self, event: Any) -> None:
        self.event = event

    def block(self) -> None:
        self.event.synchronize()


class CudaQueue:
    """A stream of a CUDA device; work is submitted by the caller's thread, which goes on while the device runs."""

    def __init__(self, name: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(name)
        self.stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def submit(self, work: Work) -> None:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self.stream):
            work()

    def mark(self) -> Mark:
        event = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return _CudaMark(event)

    def wait(self, mark: Mark) -> None:
        if isinstance(mark, _CudaMark):
            self.stream.wait_event(mark.event)
        else:
            mark.block()

    def drain(self) -> None:
        self.stream.synchronize()
