"""Which calls of a model are timed in place: a few layers that stand for all.

One layer of each kind, and more of them until a run reads so much that nothing of it is in a cache when it comes again;
of a small model all. Between the layers that are taken the hidden state is handed on as between neighbours::

    embedding | layer 0 | layer 1 | ... | layer 27 | norm, head         a model of 28 layers, 0 dense, the rest alike
    embedding | layer 0 | layer 1 | layer 2        | norm, head         what runs
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from kbench.core import KbenchError, OpCall, Problem, work
from kbench.measure import host
from kbench.results import Record, Store
from kbench.suites import Row, in_place_cells, known_records, runs_in_place

from .plan import Plan
from .stage import Stage, stages

# Last-level caches that a run reads at least. With twice the cache an adaptive or random replacement still finds a
# fifth of it on the second way round, with four times a fiftieth.
COLD_CACHES = 4
# The same where weights are read once for many tokens: reading them is little of the time, and a run takes as long as
# it has layers.
COLD_CACHES_OF_MANY, _MANY_TOKENS = 2, 16
# Weights that are made for it at the most.
MAX_BYTES = 768 << 20

# Of a model's arithmetic so much must run in place. In prefill of a large model nearly all of it is calls that are too
# big, and what these share with their neighbours is nothing beside them.
_WORTH_A_RUN = 0.25

# Slots of the caches, at the most: what a session has by default. Rows of caches lie as far apart as in one.
CAPACITY = 4096


def rehearse(
    plan: Plan,
    records: Iterable[Record],
    counts: Sequence[int],
    store: Store,
    tell: Callable[[str, int, int], None],
    *,
    fresh: bool,
) -> list[Record]:
    """Records of the calls of both phases that are timed in place, with the implementations that ``records``, those of
    the cells, found fit. ``fresh``: what the store has is not timed again. None for a batch: its sequences attend each
    to a cache of its own."""
    names = {record.core_problem(): record.implementation for record in records if record.status == "ok"}
    found: list[Record] = []
    row: Row | None = None
    for done, (phase, (tokens, context)) in enumerate([] if plan.batch > 1 else plan.shapes.items()):
        chain = rehearsed(plan.calls[phase], names.get)
        like, row = row, None
        for threads in counts:
            cells = in_place_cells(chain, threads)
            known = list(known_records(cells, store, run_tokens=tokens).values()) if fresh else []
            if len(known) < len(cells):
                tell(f"running {phase} layers", done, len(plan.shapes))
                try:
                    row = row or Row(chain, tokens, max(context, min(plan.context, CAPACITY)), like)
                    known = row.records(threads, context)
                except (KbenchError, ValueError, MemoryError):
                    return found  # their cells' prices stand
                store.append(known, suite="tune")
            found += known
    return found


def rehearsed(
    calls: Sequence[OpCall], implementation: Callable[[Problem], str | None], cold_bytes: int | None = None
) -> tuple[OpCall, ...]:
    """Those of ``calls``, a model's on one device, that are run in place, chained, and with the ``implementation`` of
    each problem; one without keeps its own. None of them where it is not worth it.

    ``cold_bytes``: what a run is to read; None: by this machine's cache.
    """
    many = calls[0].problem.integer("tokens") >= _MANY_TOKENS
    caches = COLD_CACHES_OF_MANY if many else COLD_CACHES
    cold = caches * host().llc_bytes if cold_bytes is None else cold_bytes
    calls = [
        dataclasses.replace(call, implementation=implementation(call.problem) or call.implementation) for call in calls
    ]
    in_place = {call.problem for call in calls if runs_in_place(call)}
    flops = [(work(call.problem).flops, call.problem in in_place) for call in calls]
    if sum(n for n, kept in flops if kept) < _WORTH_A_RUN * sum(n for n, _ in flops):
        return ()
    cuts = stages(calls)
    kinds = [tuple(call.problem for call in calls[cut.start : cut.stop]) for cut in cuts]
    chosen: set[int] = set()
    total = 0.0

    def take(position: int) -> None:
        nonlocal total
        cut = cuts[position]
        size = sum(work(call.problem).weight_bytes for call in calls[cut.start : cut.stop] if call.problem in in_place)
        if position not in chosen and total + size <= MAX_BYTES:
            chosen.add(position)
            total += size

    for position, kind in enumerate(kinds):
        if kind not in kinds[:position]:
            take(position)
    for position in range(len(cuts)):
        if total >= cold:
            break
        take(position)
    return tuple(_chained(calls, [cuts[position] for position in sorted(chosen)]))


def _chained(calls: Sequence[OpCall], chosen: Sequence[Stage]) -> Iterable[OpCall]:
    """The calls of the ``chosen`` stages; what enters one is what the one before it puts out."""
    last = ""
    for cut in chosen:
        mine = calls[cut.start : cut.stop]
        for call in mine:
            yield dataclasses.replace(call, inputs=tuple(last if name == cut.entry else name for name in call.inputs))
        last = mine[-1].outputs[0].name
