"""How far the tuner's predictions are from what the engine then does, model by model.

    python scripts/prediction_accuracy.py MODELS --store results           # all files; the table of docs/accuracy.md
    python scripts/prediction_accuracy.py MODELS --store results --quick   # SmolLM2 only, printed
    python scripts/prediction_accuracy.py MODELS --store results --table   # the table of what is stored

A row is a file, a thread count, a depth (tokens that are cached before) and a phase. It is predicted as ``kbench tune``
predicts: the model is lowered, its calls are timed on random weights, and the times are added up by the same code. It
is measured by the engine on the real file: a prefill step of 256 tokens, and 16 decoded tokens.

Predicted and measured take turns row by row, within a second or two of each other and in changing order, so that a
machine that drifts hits both; only calls that are too big to be run in place are timed once a round. A row is the
median over rounds of the ratio predicted / measured. Rows are stored as they are finished, and what this commit has
stored is not measured again: interrupted, run it once more.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_table import OP, newest, print_table, summary, write_document

from kbench.core import KbenchError, Phase, UserError
from kbench.engine import DEFAULT_CHUNK, load_model
from kbench.measure import RelativeNoise, host, median
from kbench.model import describe_gguf, open_gguf
from kbench.results import Record, Store, current_commit
from kbench.tuner import CostModel, ModelStep, Steps, measured_roof

SMOL = [f"SmolLM2-135M-Instruct.{quant}.gguf" for quant in ("Q4_0", "Q4_1", "Q4_K_M", "Q8_0")]
# Made by `kbench synth deepseek-v2-lite-chat`, and by `kbench synth deepseek-v2-chat --layers 4`.
LARGE = ["deepseek-v2-lite.Q4_K_M.gguf", "deepseek-v2-4-layers.Q4_K_M.gguf"]

DEPTHS = (0, 512, 2048)
# What a session holds by default: the cache has this many slots however few are filled.
CONTEXT = 4096
GENERATED = 16
# A row is run again and again for so long, and its median taken: short turns, and more of them, since neighbours of a
# virtual machine come and go within seconds.
SECONDS = 0.25
STOPPING = RelativeNoise(0.02, min_samples=6, max_samples=30, max_seconds=SECONDS)

# Rates in tokens/s: predicted with its interval, and measured.
Rates = tuple[float, float, float, float]


@dataclass
class Row:
    """One prediction and what came of it, round by round."""

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


@dataclass(frozen=True)
class Costs:
    """What is measured once a round."""

    records: list[Record]
    roof: Any


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

    def rate(self, row: Row) -> float:
        """Tokens per second at the row's depth, which is left as it was found."""
        session = self._sessions[row.depth]
        ids = self._ids[row.depth :]
        # Not counted: threads wake up, and what is read for the first time is brought in.
        for token in ids[:2]:
            session.decode(int(token))
        rates: list[float] = []
        begin = time.monotonic()
        while not rates or time.monotonic() - begin < SECONDS:
            session.truncate(row.depth)
            session.timings.clear()
            if row.phase is Phase.PREFILL:
                session.prefill(ids[:DEFAULT_CHUNK])
                rates.append(session.timings.prefill_tokens_per_s)
            else:
                for token in ids[:GENERATED]:
                    session.decode(int(token))
                rates.append(session.timings.decode_tokens_per_s)
        session.truncate(row.depth)
        return median(rates)


def predicted(steps: Steps, step: ModelStep, threads: int, others: Costs) -> tuple[float, float, float]:
    """Tokens per second of ``step`` with its interval, slower end first, from what is measured now; ``others``: what is
    not timed in place."""
    costs = CostModel([*others.records, *steps.in_place(step, threads, STOPPING)], threads=(threads,), roof=others.roof)
    price = steps.price(step, costs, threads)
    return step.tokens / price.seconds, step.tokens / price.high, step.tokens / price.low


def visit(path: Path, rows: Sequence[Row], store: Store, rounds: int) -> None:
    """Measures ``rows``, all of one file, and stores them; one thread count after the other."""
    descriptor = describe_gguf(open_gguf(path))
    weights = None
    for threads in dict.fromkeys(row.threads for row in rows):
        mine = [row for row in rows if row.threads == threads]
        steps = Steps(descriptor, [row.step for row in mine], CONTEXT)
        depths = Depths(path, threads, descriptor.vocab, weights)
        weights = depths.weights
        for number in range(rounds):
            others = Costs(steps.cells(threads), measured_roof(store, (threads,), again=True))
            for index, row in enumerate(mine):
                if (number + index) % 2:
                    rate = depths.rate(row)
                    price = predicted(steps, row.step, threads, others)
                else:
                    price = predicted(steps, row.step, threads, others)
                    rate = depths.rate(row)
                row.rounds.append((*price, rate))
        records = [row.record() for row in mine]
        store.append(records, suite="accuracy")
        print_table(records)
        del depths, steps
        gc.collect()  # sessions hold each other in circles, and gigabytes


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
    parser.add_argument("--rounds", type=int, help="[8; of the large files 3]")
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
                visit(path, todo, store, options.rounds or (3 if file in LARGE else 8))
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
