"""Times calls where they stand in a model: a run of them as one native program, on random weights.

Timed by itself, a call pays for what a model's calls share: rows are quantised once for all matrices that read them,
small values are computed by every thread without a barrier, neighbours need none between them. So a few layers run
whole, and their time is shared out among the calls by a profile, which is a run with a barrier before every step::

    run       |--------------------- T ----------------------|
    profile   |- a -|' |----- b -----|' |-- c --|'  ...         ' = what only profiling adds: (sum - T) / steps
    seconds   a - ', b - ', c - ', ...                          scaled so that they add up to T exactly
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbench.core import OpCall, Problem, work
from kbench.kernels import Cache, Prepared, example_cache, example_weights, implementation, kernel_version, op_spec
from kbench.measure import RelativeNoise, StoppingRule, Warmup, host, is_cold, measure
from kbench.model import plan_arena
from kbench.results import Record

from .cell import Cell
from .copies import family
from .layout import aligned, aligned_buffer, write
from .runner import part_for

# A call of more is left to a cell of its own: what it shares with its neighbours is nothing beside it, and the run
# would take seconds.
MAX_FLOPS = 5e9

# Of the run: enough for a median within 2 %, and for the quartiles that become the prediction's interval.
_STOPPING = RelativeNoise(0.02, min_samples=7, max_samples=60, max_seconds=0.6)
_WARMUP = Warmup(min_calls=1, max_calls=4, max_seconds=0.3)
# Profiles: as many as take about this long.
_PROFILE_SECONDS = 0.4
_PROFILES = (2, 12)

# However little of a profile is left when the barriers are taken off, it is no less than this share of it.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Placed:
    """A call that is run in place, with the problem that it stands for (all experts, the whole vocabulary)."""

    call: OpCall
    whole: Problem
    prepared: Prepared


class Row:
    """Calls of one step of a model, in order, made ready to run on any number of threads.

    ``calls`` name implementations. What is no native call, or too big to be made whole, is left out: the values that it
    would make are constants, and its cell prices it.
    """

    def __init__(self, calls: Sequence[OpCall], tokens: int, capacity: int, like: Row | None = None) -> None:
        """A step of ``tokens`` new ones; caches have ``capacity`` slots, all of them filled. Weights that ``like`` has,
        a row of another step of the same model, are not made again."""
        self._tokens = tokens
        self._made: dict[object, Prepared] = {} if like is None else dict(like._made)
        rng = np.random.default_rng(0)
        self._placed: list[Placed] = []
        self._caches: dict[int, Cache] = {}
        constants: dict[str, np.ndarray[Any, Any]] = {}
        for call in calls:
            kept = _kept(call)
            if kept is None:
                for value in call.outputs:
                    rows = 1 if value.rows == "one" else tokens
                    made = rng.standard_normal((rows, value.width), np.float32)
                    constants[value.name] = np.zeros_like(made, np.int32) if value.dtype == "i32" else made
                continue
            if kept.op == "moe_experts":
                # Any of the experts that are there, not those of 160 that a router would choose.
                experts, top_k = kept.problem.integer("experts"), kept.problem.integer("top_k")
                ids = np.argsort(rng.random((tokens, experts)), axis=-1)[:, :top_k].astype(np.int32)
                name = f"{kept.module}.ids at hand"
                constants[name] = ids
                kept = dataclasses.replace(kept, inputs=(kept.inputs[0], name, *kept.inputs[2:]))
            if kept.problem.has("kv"):
                room = kept.problem.replace(context=capacity)
                self._caches[int(kept.attrs["layer"])] = example_cache(room, rng)  # type: ignore[arg-type]
            self._placed.append(Placed(kept, call.problem, self._prepared(kept, rng)))
        vocabulary = min((p.call.problem.integer("vocab") for p in self._placed if p.call.op == "embedding"), default=1)
        self._ids = rng.integers(0, vocabulary, tokens, dtype=np.int32)
        running = [placed.call for placed in self._placed]
        arena = plan_arena(running, tokens)
        offsets, end = dict(arena.offsets), aligned(arena.n_bytes)
        needed = {name for call in running for name in call.inputs}
        for name in sorted(needed & set(constants)):
            offsets[name] = end
            end += aligned(constants[name].nbytes)
        self._offsets: Mapping[str, int] = offsets
        self._arena = aligned_buffer(max(end, 1))
        for name in sorted(needed & set(constants)):
            write(self._arena, offsets[name], constants[name])

    def _prepared(self, call: OpCall, rng: np.random.Generator) -> Prepared:
        key = (call.module, family(call.problem), call.weights, call.implementation)
        if key not in self._made:
            weights = example_weights(call.problem, rng)
            if len(weights) < len(call.weights):
                weights = example_weights(call.problem, rng, bias=True)
            self._made[key] = implementation(call.implementation).prepare(call.problem, weights, None)
        return self._made[key]

    def problems(self, context: int) -> list[Problem]:
        """Those that are run, each once, at a depth of ``context``."""
        return list(dict.fromkeys(_at(placed.whole, context) for placed in self._placed))

    @property
    def touched_bytes(self) -> int:
        """Weights that a run reads."""
        return int(sum(work(placed.call.problem).weight_bytes for placed in self._placed))

    def records(self, threads: int, context: int, stopping: StoppingRule | None = None) -> list[Record]:
        """Runs the calls on ``threads`` threads, or the fewer that a call names, ``context`` tokens being cached at the
        end: one record for each different problem and count, seconds of a call each."""
        from kbench.kernels import Program, pool

        position = context - self._tokens

        program = Program(pool(threads), self._arena, self._tokens)
        ends: list[int] = []
        for placed in self._placed:
            item: Any = implementation(placed.call.implementation)
            ends.append(item.emit(program, placed.call, placed.prepared, self._offsets, self._caches) + 1)

        measured = measure(lambda: program.run(self._ids, position), stopping=stopping or _STOPPING, warmup=_WARMUP)
        least, most = _PROFILES
        count = min(most, max(least, int(_PROFILE_SECONDS / measured.median_seconds)))
        profiles = [program.run(self._ids, position, True) for _ in range(count)]
        # The least of each: whatever disturbs a step makes it longer, and a long step is disturbed more often.
        steps = [min(profile[step] for profile in profiles) for step in range(ends[-1])]
        seconds = in_run(steps, ends, measured.median_seconds)
        cold = is_cold(1, self.touched_bytes, host().llc_bytes)
        found: dict[tuple[Problem, str, int], list[int]] = {}
        for index, placed in enumerate(self._placed):
            key = _at(placed.whole, context), placed.call.implementation, placed.call.threads or threads
            found.setdefault(key, []).append(index)
        records = []
        for (problem, name, n_threads), members in found.items():
            share = sum(seconds[index] for index in members) / len(members) / measured.median_seconds
            first = self._placed[members[0]].prepared
            records.append(
                Record.make(
                    problem,
                    name,
                    threads=n_threads,
                    result=dataclasses.replace(
                        measured,
                        samples_seconds=tuple(sample * share for sample in measured.samples_seconds),
                        first_seconds=measured.first_seconds * share,
                    ),
                    op_spec_hash=op_spec(problem.op).hash,
                    extra={
                        "block": {}, "kernel_version": kernel_version(implementation(name)), "in_place": len(members),
                        "run_tokens": self._tokens, "cold": cold, "prepared_bytes": first.n_bytes,
                        "prepare_seconds": getattr(first, "seconds", 0.0),
                    },
                )
            )  # fmt: skip
        return records


def in_place_cells(calls: Iterable[OpCall], threads: int) -> list[Cell]:
    """What a ``Row`` of ``calls`` has records of."""
    kept = dict.fromkeys((call.problem, call.implementation) for call in calls if runs_in_place(call))
    return [Cell(problem, name, threads) for problem, name in kept]


def runs_in_place(call: OpCall) -> bool:
    """Whether a ``Row`` runs ``call``: its implementation is native, and it is not too big to be made whole."""
    return _kept(call) is not None


def in_run(steps: Sequence[float], ends: Sequence[int], run_seconds: float) -> list[float]:
    """Seconds of each call within a run of ``run_seconds``, out of a profile of its steps; ``ends``: the step after the
    call's last."""
    added = max(0.0, sum(steps) - run_seconds) / len(steps)
    calls = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        whole = sum(steps[begin:end])
        calls.append(max(whole - added * (end - begin), _LEAST_SHARE * whole))
    scale = run_seconds / sum(calls)
    return [seconds * scale for seconds in calls]


def _at(problem: Problem, context: int) -> Problem:
    return problem.replace(context=context) if problem.has("context") else problem


def _kept(call: OpCall) -> OpCall | None:
    """``call`` as it can be run here, of fewer experts or rows of the vocabulary; None where it cannot."""
    if not call.implementation.startswith("cpu."):
        return None
    part = part_for(implementation(call.implementation), call.problem)
    if part.scale != 1 or work(call.problem).flops > MAX_FLOPS:
        return None
    return dataclasses.replace(call, problem=part.problem)
