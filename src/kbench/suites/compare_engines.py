"""Whole engines, or kbench under two rule files, compared on one GGUF file in pairs; each side a process of its own."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kbench.core import CheckBroken
from kbench.engine import BEGINNING, check_engine, parse_engine
from kbench.measure import Plan, Side, Turns, decide_together
from kbench.model import describe_gguf, model_stem, open_gguf, stored_bytes
from kbench.results import Store, case_key

from .contest import Outcome
from .runner import Progress

# Norm-wise distance of logits, their means taken off, between engines that compute the same thing: 3 % on a real model
# whose activations one rounds to 8 bits, up to 46 % on random weights where experts are chosen differently. Of engines
# that have nothing to do with each other it is 141 %.
MAX_DISTANCE = 0.5

# Pairs take seconds here. The first look has a sixth of the error rate, each of two things half of that: 0.0042. Nine
# pairs that all lie on one side of no change reach it (2/512); ten also when the nearest of them lies across (4/1024).
LOOKS = (10, 20, 40)
# Where confirming a call at the first of them would take longer than the time given.
FEW_LOOKS = (8, 16)
MARGIN = 0.05
MAX_SECONDS = 100.0

# Memory of a side in sizes of the file: packed or repacked weights; llama.cpp repacks what it can and reads the rest,
# and what is left of the file besides is given up under pressure.
_MEMORY = {"kbench": 1.06, "ik_llama.cpp": 1.06, "llama.cpp": 1.2}
_PROCESS_BYTES = 300 << 20
_TOKENS_SEED = 0

PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens of a turn: a prompt, and tokens generated after a short beginning."""

    prompt: int = 128
    generate: int = 16

    @property
    def context(self) -> int:
        return max(self.prompt, self.generate + BEGINNING)

    def request(self, vocabulary: int) -> dict[str, Any]:
        """Seeded random ids, the same for all."""
        rng = random.Random(_TOKENS_SEED)

        def ids(n: int) -> list[int]:
            return [rng.randrange(vocabulary) for _ in range(n)]

        return {"prompt": ids(self.prompt), "beginning": ids(BEGINNING), "generated": ids(self.generate)}


def engine_plan(margin: float | None = None) -> Plan:
    """Fewer pairs, each of seconds, and a wider margin than for kernels."""
    return Plan(margin=MARGIN if margin is None else margin, looks=LOOKS)


def engine_side(
    name: str, model: Path, engine: str, threads: int, context: int, rules: Path | None = None, **where: Any
) -> Side:
    """A process that runs ``engine`` on ``model``; ``where`` may name another interpreter and environment."""
    command = ["-m", "kbench.suites.engine_side", str(model), "--engine", engine, "--threads", str(threads)]
    command += ["--context", str(context), *(["--rules", str(rules)] if rules is not None else [])]
    n_bytes = _PROCESS_BYTES + round(stored_bytes(model) * _MEMORY[parse_engine(engine)[0]])
    return Side(name, command, n_bytes, **where)


def distance(logits: Sequence[float], truth: Sequence[float]) -> float:
    """Norm-wise, as a share, of logits without what softmax does not see: their mean."""
    a, b = (np.asarray(values, np.float64) - np.mean(values) for values in (logits, truth))
    if a.shape != b.shape:
        return math.inf
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-300))


def engine_sides(names: Sequence[str], model: Path, threads: int, workload: Workload) -> tuple[Side, Side]:
    """The two engines' processes, not started yet.

    Raises:
        UserError, InvalidEnvironment: an engine or option that is unknown, or not installed.
    """
    for name in names:
        check_engine(parse_engine(name)[0])
    a, b = names
    labels = (f"A ({a})", f"B ({b})") if a == b else (a, b)
    first, second = (
        engine_side(label, model, name, threads, workload.context) for label, name in zip(labels, names, strict=True)
    )
    return first, second


def rule_sides(paths: Sequence[Path], model: Path, threads: int, workload: Workload) -> tuple[Side, Side]:
    """kbench under each of two rule files."""
    labels = [path.name for path in paths] if paths[0].name != paths[1].name else [str(path) for path in paths]
    if labels[0] == labels[1]:
        labels = [f"{letter} ({label})" for letter, label in zip("AB", labels, strict=True)]
    first, second = (
        engine_side(label, model, "kbench", threads, workload.context, path)
        for label, path in zip(labels, paths, strict=True)
    )
    return first, second


def compare_engines(
    model: Path,
    sides: tuple[Side, Side],
    store: Store | None,
    *,
    threads: int,
    workload: Workload = Workload(),
    plan: Plan | None = None,
    max_seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Prefill and decode of ``sides`` on ``model``, judged from the same pairs.

    Raises:
        KbenchError: what a side refused to start for: rules for a device that is not here, a file that is no good.
        CheckBroken: a side died; or their logits are further apart than two engines' on one model.
    """
    a, b = sides
    descriptor = describe_gguf(open_gguf(model))
    request = workload.request(descriptor.vocab)
    warm_up = {**request, "generated": request["generated"][:BEGINNING]}
    plan = replace(plan or engine_plan(), n_comparisons=2)
    samples: dict[str, tuple[list[float], list[float]]] = {phase: ([], []) for phase in PHASES}
    told, most = 0, plan.looks[-1]

    def tell(what: str) -> None:
        if progress is not None:
            progress(min(told, most), most, what)

    with Turns(sides, warm_up) as turns:
        tell("loading both sides, comparing their logits")
        logits = turns.take(1, {**request, "logits": True})
        by_name = {name: values[0] for (name, _), values in logits.items()}
        apart = distance(by_name[a.name], by_name[b.name])
        if not apart <= MAX_DISTANCE:
            raise CheckBroken(
                f"their logits after {BEGINNING} tokens are {apart:.0%} apart: they do not compute the same model",
                where=f"{a.name} and {b.name}", accepted=f"at most {MAX_DISTANCE:.0%}",
            )  # fmt: skip

        def pairs(n: int) -> dict[str, tuple[list[float], list[float]]]:
            nonlocal told
            found: dict[str, tuple[list[float], list[float]]] = {phase: ([], []) for phase in PHASES}
            step = 1 if turns.at_once else n  # loading in turns is for the turns to arrange
            for _ in range(0, n, step):
                answers = {name: values for (name, _), values in turns.take(step, request).items()}
                for which, side in enumerate(sides):
                    for index, phase in enumerate(PHASES):
                        found[phase][which].extend(float(answer[index]) for answer in answers[side.name])
                told += step
                tell(f"{a.name} against {b.name}")
            return found

        def rows(taken: Mapping[str, tuple[list[float], list[float]]], n: int) -> list[tuple[float, ...]]:
            return [tuple(math.log(taken[p][1][-n:][i] / taken[p][0][-n:][i]) for p in PHASES) for i in range(n)]

        begin = time.monotonic()
        pairs(1)  # thrown away: how long does one take?
        if 2 * plan.looks[0] * (time.monotonic() - begin) > max_seconds:
            plan = replace(plan, looks=FEW_LOOKS)
        told = 0

        def take(n: int) -> list[tuple[float, ...]]:
            taken = pairs(n)
            for phase in PHASES:
                for which in (0, 1):
                    samples[phase][which].extend(taken[phase][which])
            return rows(taken, n)

        def fresh(n: int) -> list[tuple[float, ...]]:
            turns.stop()
            return rows(pairs(n), n)

        begin = time.monotonic()
        judgements = decide_together(
            take, plan, take_fresh=fresh, out_of_time=lambda: time.monotonic() - begin > max_seconds
        )
    outcomes = []
    for phase, n_tokens, judgement in zip(PHASES, (workload.prompt, workload.generate), judgements, strict=True):
        n = judgement.n_pairs
        key = case_key(phase, {"model": model_stem(model), "tokens": n_tokens, "threads": threads})
        outcomes.append(
            Outcome(
                key, a.name, b.name, threads, "ok", judgement.reason, judgement,
                tuple(samples[phase][0][:n]), tuple(samples[phase][1][:n]),
                {
                    "margin": plan.margin, "tokens": n_tokens, "logits_apart": apart,
                    "sides": [dict(side.about) for side in sides], "peak_bytes": [side.peak_bytes for side in sides],
                },
            )
        )  # fmt: skip
    if store is not None:
        store.append([outcome.record() for outcome in outcomes], suite="compare")
    return outcomes
