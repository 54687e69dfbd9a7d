"""What loading a model takes, and what Python takes of a decode step.

    python scripts/loading.py model.gguf --generate 16

Prints the seconds of loading (on a busy machine those of CPU say more), the largest resident memory while loading and
after it beside the size of the file (the pages of the file that are mapped count), and the share of decode's time that
is spent outside of native code: Python between the calls of a step, around them, and NumPy views of the result, but not
choosing a token.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from kbench.engine import Session, load_model
from kbench.engine.executor import Executable
from kbench.model import stored_bytes


class Resident:
    """The largest resident memory of this process while a block runs, looked at every 20 ms."""

    def __enter__(self) -> Resident:
        self.most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._done.wait(0.02):
            self.most = max(self.most, process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def python_share(session: Session, n_tokens: int) -> float:
    """Of ``n_tokens`` decode steps, the part of the wall time that is not inside native programs."""
    inside = 0.0

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal inside
            start = time.perf_counter()
            result = run(*arguments)
            inside += time.perf_counter() - start
            return result

        return call

    program: Executable = session._decode
    for step in program._steps:  # on the CPU alone each is a run of native calls
        step.run = timed(step.run)  # type: ignore[method-assign]
    session.prefill([1, 2, 3, 4])
    session.decode(5)
    inside = 0.0
    start = time.perf_counter()
    for token in range(n_tokens):
        session.decode(token)
    return 1 - inside / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--generate", type=int, default=16)
    parser.add_argument("--context", type=int)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with Resident() as resident:
        start, start_cpu = time.perf_counter(), time.process_time()
        session = load_model(options.model, context=options.context, threads=options.threads)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    after, size, gib = psutil.Process().memory_info().rss, stored_bytes(options.model), 2**30
    speed = session.report.file_bytes / seconds / 1e9
    print(f"loaded {size / gib:.2f} GiB in {seconds:.1f} s, {speed:.2f} GB/s; {cpu_seconds:.1f} s of CPU")
    print(f"resident while loading {(resident.most - size) / gib:+.2f} GiB of the file's size")
    print(f"resident after loading {(after - size) / gib:+.2f} GiB of the file's size")
    share = python_share(session, options.generate)
    print(f"Python's share of a decode step {share:.2%}, {session.timings.decode_tokens_per_s:.2f} tokens/s")
    n_bytes = psutil.Process().memory_info().rss
    print(f"resident after {options.generate} tokens {(n_bytes - size) / gib:+.2f} GiB of the file's size")


if __name__ == "__main__":
    main()
