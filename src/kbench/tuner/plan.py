"""What has to be known before anything can be placed: the calls of both phases, and the cells to measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbench.core import AUTO, CPU, PLANNED, Module, OpCall, Phase, Problem, Unsupported, UserError
from kbench.kernels import candidates
from kbench.model import ModelDescriptor, build_tree, lower
from kbench.results import Routing

from .proxy import proxy
from .request import TuneRequest, Workload
from .stage import layer_of, stages
from .visits import Visits

# A problem as it is measured, by what, with how many threads.
Key = tuple[Problem, str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A model lowered for its workload, everything on the CPU.

    ``calls`` are cut into the same stages and units in both phases. ``visits``: how a layer's routed experts are
    visited, by the layer's module; evenly where it is not there. ``routing``: where that was recorded, in words.
    """

    descriptor: ModelDescriptor
    tree: Module
    workload: Workload
    context: int
    kv: str
    calls: dict[Phase, tuple[OpCall, ...]]
    batch: int = 1
    visits: Mapping[str, Visits] = field(default_factory=dict)
    routing: str = ""

    @property
    def shapes(self) -> dict[Phase, tuple[int, int]]:
        """Tokens and context of a step of each phase."""
        return _shapes(self.workload, self.batch)

    def priced(self, problem: Problem) -> tuple[Problem, int]:
        """The problem that ``problem`` is priced by, and how often: sequences of a batch share weights, but each
        attends to a cache of its own."""
        if self.batch > 1 and problem.integer("tokens") == self.batch and problem.op in _APART:
            return problem.replace(tokens=1), self.batch
        return problem, 1

    @property
    def problems(self) -> list[Problem]:
        """Every problem once."""
        return list(dict.fromkeys(self.priced(call.problem)[0] for phase in Phase for call in self.calls[phase]))


# What the sequences of a batch do each for itself.
_APART = ("attention", "mla_attention", "delta_rule")


def _shapes(work: Workload, batch: int) -> dict[Phase, tuple[int, int]]:
    context = max(batch, work.decode_context)
    return {Phase.DECODE: (batch, context), Phase.PREFILL: (work.chunk, work.prefill_context)}


def make_plan(
    descriptor: ModelDescriptor, request: TuneRequest, work: Workload, routing: Routing | None = None
) -> Plan:
    """Lowers ``descriptor`` for decoding one token and for one prefill step of the workload.

    Raises:
        Unsupported: the two phases are not made of the same stages and units.
        UserError: ``routing`` is of a model with other layers or experts.
    """
    calls = {
        phase: lower(descriptor, {}, phase, tokens, context, kv=request.kv, resolve=lambda problem, device: AUTO)
        for phase, (tokens, context) in _shapes(work, request.batch).items()
    }
    # Latent attention may be absorbed in one phase and not in the other: its unit then has other calls.
    kinds = [[(stage.name, [u.kind for u in stage.units]) for stage in stages(calls[phase])] for phase in Phase]
    if any(other != kinds[0] for other in kinds):
        raise Unsupported("prefill and decode are cut into different stages", where=descriptor.name)
    visits = _visits(routing, calls[Phase.DECODE], descriptor) if routing is not None else {}
    name = routing.key if routing is not None else ""
    tree = build_tree(descriptor)
    return Plan(descriptor, tree, work, request.context, request.kv, calls, request.batch, visits, name)


def _visits(routing: Routing, calls: Iterable[OpCall], descriptor: ModelDescriptor) -> dict[str, Visits]:
    routed = {layer_of(call.module): call.problem for call in calls if call.op == "moe_experts"}
    numbers = {int(name.rpartition(".")[2]): name for name in routed}
    found = f"{len(routing.visits)} layers of {routing.experts} experts, {routing.top_k} a token"
    shape = {(p.integer("experts"), p.integer("top_k")) for p in routed.values()}
    if shape != {(routing.experts, routing.top_k)} or set(numbers) != set(routing.visits):
        experts, top_k = next(iter(shape), (0, 0))
        raise UserError(
            f"visits to {found}, of {routing.model}",
            where="--routing",
            accepted=f"{descriptor.name} has {len(numbers)} layers of {experts} experts, {top_k} a token",
        )
    return {name: Visits(routing.top_k, routing.visits[number]) for number, name in numbers.items()}


def implementations_of(problem: Problem) -> list[str]:
    """Names of the CPU implementations that run ``problem`` here, best first; none of what can only be planned."""
    if problem.op in PLANNED:
        return []
    return [item.name for item, support in candidates(problem, CPU) if support.ok]


def thread_counts(usable: int, pinned: int | None) -> tuple[int, ...]:
    """Counts to try: all up to four, beyond that powers of two and all cores; ``pinned`` alone when it is given."""
    if pinned is not None:
        return (pinned,)
    counts = {n for n in (1, 2, 3, 4, 8, 16, 32, 64, 128) if n < usable and (n != 3 or usable == 4)}
    return (*sorted(counts), usable)


def cells(plan: Plan, threads: Iterable[int], skip: Iterable[Key] = ()) -> list[Key]:
    """What to measure for ``plan``: see ``cells_of``."""
    return cells_of(plan.problems, threads, skip)


def cells_of(problems: Iterable[Problem], threads: Iterable[int], skip: Iterable[Key] = ()) -> list[Key]:
    """What to measure: each problem's stand-in with its best implementation that is not in ``skip``, by threads."""
    skipped = set(skip)
    counts = tuple(threads)
    found: dict[Key, None] = {}
    for problem in problems:
        small, _ = proxy(problem)
        for n in counts:
            names = (name for name in implementations_of(small) if (small, name, n) not in skipped)
            name = next(names, None)
            if name is not None:
                found[small, name, n] = None
    return list(found)
