"""How far the tuner's predictions are from what the engine then does, model by model.

    python scripts/prediction_accuracy.py MODELS --store results           # all files; the table of docs/accuracy.md
    python scripts/prediction_accuracy.py MODELS --store results --quick   # SmolLM2 only, printed
    python scripts/prediction_accuracy.py MODELS --store results --table   # the table of what is stored

A row is a file, a thread count, a depth (tokens that are cached before) and a phase. It is predicted as ``kbench tune``
predicts: the model is lowered, its calls are timed on random weights, and the times are added up by the same code. It
is measured by the engine on the real file: prefill steps of 256 tokens, and decoded tokens, 16 after the depth, again
and again.

The samples of both sides take turns step by step, so that a machine that drifts hits both; of the calls that are too
big to be run in place a share is timed after each step of the engine. Where memory comes to lie is drawn once for a
process too, so a small file is visited by several, and the sides take turns in being the first to get theirs. A row is
the median over processes of the ratio predicted / measured, both medians over steps. Where the engine's steps scatter
too much for a median the row is taken again, whatever its ratio. Rows are stored as their file is finished, and what
this commit has stored is not measured again: interrupted, run it once more.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_table import OP, newest, print_table, summary, write_document

from kbench.core import KbenchError, Phase, UserError
from kbench.engine import DEFAULT_CHUNK, load_model
from kbench.measure import host, relative_spread
from kbench.model import describe_gguf, open_gguf
from kbench.results import Record, Store, current_commit
from kbench.tuner import CostModel, EngineTurns, ModelStep, Steps, beside, measured_roof

SMOL = [f"SmolLM2-135M-Instruct.{quant}.gguf" for quant in ("Q4_0", "Q4_1", "Q4_K_M", "Q8_0")]
# Made by `kbench synth deepseek-v2-lite-chat`, and by `kbench synth deepseek-v2-chat --layers 4`.
LARGE = ["deepseek-v2-lite.Q4_K_M.gguf", "deepseek-v2-4-layers.Q4_K_M.gguf"]

DEPTHS = (0, 512, 2048)
# What a session holds by default: the cache has this many slots however few are filled.
CONTEXT = 4096
GENERATED = 16
# Steps of a row in one process, of either side: a second or two of them.
STEPS = {Phase.PREFILL: 3, Phase.DECODE: 48}

# A row is taken again where the middle half of the engine's steps spreads over more than this share of their median:
# the machine had something else to do then. On a quiet one it is 1 to 4 %.
MOST_SPREAD, MOST_TRIES = 0.10, 3

# Rates in tokens/s: predicted with its interval, and measured.
Rates = tuple[float, float, float, float]


@dataclass
class Row:
    """One prediction and what came of it, process by process."""

    file: str
    phase: Phase
    depth: int
    threads: int
    rounds: list[Rates] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return DEFAULT_CHUNK if self.phase is Phase.PREFILL else 1

    @property
    def step(self) -> ModelStep:
        """Decoding is priced half way through the tokens that are decoded."""
        context = self.depth + (self.tokens if self.phase is Phase.PREFILL else GENERATED // 2)
        return ModelStep(self.phase, self.tokens, context)

    def record(self) -> Record:
        predicted, low, high, measured = zip(*self.rounds, strict=True)
        return Record.make(
            (OP, {"file": self.file, "phase": str(self.phase), "depth": self.depth}),
            "kbench",
            threads=self.threads,
            result=measured,
            unit="tokens/s",
            direction="higher",
            extra={"predicted": predicted, "low": low, "high": high},
        )


class Depths:
    """The engine at several depths: a session for each, over one copy of the weights."""

    def __init__(self, path: Path, threads: int, vocab: int, weights: Any) -> None:
        rng = np.random.default_rng(0)
        self._ids = rng.integers(0, vocab, max(DEPTHS) + DEFAULT_CHUNK)
        self._sessions = {}
        for depth in DEPTHS:
            session = load_model(path, context=CONTEXT, threads=threads, weights=weights)
            weights = session.weights
            if depth:
                session.prefill(self._ids[:depth])
            self._sessions[depth] = session
        self.weights = weights

    def turns(self, row: Row) -> EngineTurns:
        """The row's steps, at its depth, which is left as it was found."""
        ids = self._ids[row.depth :][: DEFAULT_CHUNK if row.phase is Phase.PREFILL else GENERATED]
        return EngineTurns(self._sessions[row.depth], ids, row.phase, row.depth, STEPS[row.phase])


def visit(path: Path, rows: Sequence[Row], results: str, engine_first: bool) -> list[list[Rates]]:
    """Measures ``rows``, all of one file, one thread count after the other: a round of each."""
    descriptor = describe_gguf(open_gguf(path))
    store, weights = Store(results), None
    for threads in dict.fromkeys(row.threads for row in rows):
        mine = [row for row in rows if row.threads == threads]
        steps = Steps(descriptor, [row.step for row in mine], CONTEXT)
        if not engine_first:
            steps.make_rows()
        depths = Depths(path, threads, descriptor.vocab, weights)
        weights = depths.weights
        steps.make_rows()
        for row in mine:
            tries: list[tuple[float, Rates]] = []
            while len(tries) < MOST_TRIES and min(tries, default=(math.inf,))[0] > MOST_SPREAD:
                turns, roof = depths.turns(row), measured_roof(store, (threads,), again=True)
                records = beside(row.step, steps, turns, threads)
                price = steps.price(row.step, CostModel(records, threads=(threads,), roof=roof), threads)
                low, middle, high = (row.tokens / t for t in (price.high, price.seconds, price.low))
                tries.append((relative_spread(turns.seconds), (middle, low, high, turns.tokens_per_s)))
            row.rounds.append(min(tries)[1])
        del depths, steps
        gc.collect()  # sessions hold each other in circles, and gigabytes
    return [row.rounds for row in rows]


def visits(path: Path, rows: Sequence[Row], processes: int, results: str) -> None:
    """``visit`` in so many processes, one after the other; stores and prints what came of it."""
    for number in range(processes):
        blank = [replace(row, rounds=[]) for row in rows]
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as one:
            found = one.submit(visit, path, blank, results, number % 2 == 0).result()
        for row, taken in zip(rows, found, strict=True):
            row.rounds += taken
        print(f"  {number + 1} of {processes} processes", flush=True)
    records = [row.record() for row in rows]
    Store(results).append(records, suite="accuracy")
    print_table(records)


def wanted(files: Iterable[str], threads: Sequence[int]) -> list[Row]:
    return [Row(file, phase, depth, n) for file in files for n in threads for phase in Phase for depth in DEPTHS]


def unfinished(rows: Iterable[Row], store: Store) -> list[Row]:
    """Those that this commit has not stored of this machine."""
    known = {record.key for record in store.find(op=OP, host_id=host().host_id, commit=current_commit())}
    return [row for row in rows if replace(row, rounds=[(1, 1, 1, 1)]).record().key not in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder with the files")
    parser.add_argument("--store", required=True, help="results folder")
    parser.add_argument("--quick", action="store_true", help="SmolLM2 only, and no document")
    parser.add_argument("--file", action="append", help="only this file of the folder; may be repeated, no document")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, host().usable_cpus}))
    parser.add_argument("--processes", type=int, help="[4; of the large files 1]")
    parser.add_argument("--minutes", type=float, default=20, help="no further file is begun after them")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    begin, store = time.monotonic(), Store(options.store)
    files = options.file or (SMOL if options.quick else SMOL + LARGE)
    rows = wanted(files, options.threads)
    try:
        for file in [] if options.table else files:
            path = options.models / file
            if not path.is_file():
                raise UserError("no such file", where=str(path), todo="see the beginning of docs/accuracy.md")
            todo = [row for row in unfinished(rows, store) if row.file == file]
            if todo and time.monotonic() - begin < 60 * options.minutes:
                print(f"{file}: {len(todo)} rows", flush=True)
                visits(path, todo, options.processes or (1 if file in LARGE else 4), options.store)
        keys = {replace(row, rounds=[(1, 1, 1, 1)]).record().key for row in rows}
        records = [r for r in newest(store.find(op=OP, host_id=host().host_id)) if r.key in keys]
    except KbenchError as error:
        sys.exit(error.message)
    print(summary(records))
    if not options.quick and not options.file:
        write_document(records)
    if len(records) < len(rows):
        print(f"{len(rows) - len(records)} of {len(rows)} rows are missing: run it again")


if __name__ == "__main__":
    main()
