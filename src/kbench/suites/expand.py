"""From a suite to its cells on this machine."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator

from kbench.core import CPU, OPS, Block, Device, Problem, Unsupported, UserError, quant
from kbench.kernels import best, block_errors, candidates, implementation
from kbench.measure import host

from .cell import Cell
from .claim_list import ClaimCheck
from .engine_case import MAX_THREADS_WORD, EngineCase
from .gpu import GPU_KERNELS
from .rungs import Rung
from .schema import ALL_WORD, AUTO_WORD, Axes, Suite


def _problems(axes: Axes) -> Iterator[Problem]:
    for values in itertools.product(*axes.values):
        problem = Problem(axes.op, values)
        for name in OPS[axes.op]:
            if name.startswith("quant"):
                try:
                    quant(problem.text(name))
                except Unsupported as error:
                    raise UserError(error.found, where=axes.where, accepted=error.accepted, todo=error.todo) from None
        if problem.has("context") and problem.integer("context") < problem.integer("tokens"):
            continue  # the tokens of a call are part of its context: a corner of the product that does not exist
        yield problem


def _names(word: str, problem: Problem, device: Device = CPU) -> list[str]:
    if device != CPU:  # whether it runs, and whether there is such a device, is for the runner to say
        on_gpu = {AUTO_WORD: ["torch"], ALL_WORD: ["torch", *GPU_KERNELS]} | {name: [name] for name in GPU_KERNELS}
        return on_gpu.get(word) or [implementation(word).name]
    if word == AUTO_WORD:
        return [best(problem)]
    if word == ALL_WORD:
        return [item.name for item, verdict in candidates(problem) if verdict.ok]
    return [implementation(word).name]


def _blocks(axes: Axes, problem: Problem, name: str) -> Iterator[Block]:
    """Settings of the kernel parameters of implementation ``name``; those without an effect on ``problem`` are left
    out, so that nothing is measured twice."""
    if name in GPU_KERNELS:
        yield {}
        return
    item = implementation(name)
    declared = {parameter.name: parameter for parameter in item.block_parameters(problem)}
    if axes.each_block:
        yield {}
        for key, parameter in declared.items():
            yield from ({key: value} for value in parameter.candidates if value != parameter.default)
        return
    if item.block_parameters():  # an implementation without any is measured once, for comparison
        for values in itertools.product(*axes.block.values()):
            block = dict(zip(axes.block, values, strict=True))
            for error in block_errors(block, [(name, CPU)], axes.where).values():
                raise error
            yield {key: value for key, value in block.items() if key in declared}
    else:
        yield {}


def expand(suite: Suite) -> tuple[Cell, ...]:
    """Every cell of ``suite`` once, in the suite's order; ``auto``, ``all`` and ``max`` are resolved here. A ladder's
    cells are its rungs.

    Raises:
        UserError: an unknown implementation, storage type or kernel parameter.
    """
    threads = dict.fromkeys(host().usable_cpus if word == MAX_THREADS_WORD else int(word) for word in suite.threads)
    rungs = (Cell(r.problem, _names(r.step, r.problem)[0], count) for r in suite.ladder for count in threads)
    cells = dict.fromkeys(rungs) | dict.fromkeys(
        Cell(problem, name, count, block, suite.device)
        for axes in suite.axes
        for problem in _problems(axes)
        for word in suite.implementations
        for name in _names(word, problem, suite.device)
        for block in _blocks(axes, problem, name)
        for count in threads
    )
    return tuple(cell for cell in cells if not any(matches(cell.key, pattern) for pattern in suite.exclude))


def engine_cases(suite: Suite, model: str = "", rules: str = "") -> tuple[EngineCase, ...]:
    """Every engine case of ``suite`` once, in its order; ``model`` and ``rules`` take the place of the suite's own.

    Raises:
        UserError: there is no model.
    """
    cases = dict.fromkeys(
        case
        for axes in suite.engine
        for case in axes.cases(suite.threads, host().usable_cpus, model, rules, suite.folder)
    )
    return tuple(case for case in cases if not any(matches(case.key, pattern) for pattern in suite.exclude))


def matches(key: str, pattern: str) -> bool:
    """Whether ``pattern`` names a case key: as a glob of all of it, or as a part of it."""
    return pattern in key or fnmatch.fnmatchcase(key, pattern)


def select(cells: Iterable[Cell], pattern: str) -> tuple[Cell, ...]:
    """The cells whose case key ``pattern`` matches; in the pattern, the implementation and its kernel parameters may
    follow, as they are printed.

    Raises:
        UserError: it matches none.
    """
    return select_any(cells, (), pattern)[0]


def select_any(
    cells: Iterable[Cell], cases: Iterable[EngineCase], pattern: str
) -> tuple[tuple[Cell, ...], tuple[EngineCase, ...]]:
    """The cells, as ``select`` has them, and the engine cases whose key ``pattern`` matches.

    Raises:
        UserError: it matches none of either.
    """
    cells, cases = tuple(cells), tuple(cases)
    some_cells = tuple(
        c
        for c in cells
        if matches(c.key, pattern) or matches(f"{c.key} {c.implementation}", pattern) or matches(str(c), pattern)
    )
    some_cases = tuple(case for case in cases if matches(case.key, pattern))
    if not some_cells and not some_cases:
        keys = [*(cell.key for cell in cells), *(case.key for case in cases)]
        examples = ", ".join(list(dict.fromkeys(keys))[:3])
        raise UserError(f"filter {pattern!r} matches no case", accepted=f"a part or glob of keys such as {examples}")
    return some_cells, some_cases


def select_rungs(rungs: Iterable[Rung], pattern: str) -> tuple[Rung, ...]:
    """The rungs whose step or problem ``pattern`` matches.

    Raises:
        UserError: it matches none.
    """
    rungs = tuple(rungs)
    chosen = tuple(rung for rung in rungs if matches(rung.step, pattern) or matches(str(rung), pattern))
    if not chosen:
        examples = ", ".join(dict.fromkeys(rung.step for rung in rungs))
        raise UserError(f"filter {pattern!r} matches no rung", accepted=f"a part or glob of {examples}")
    return chosen


def select_claims(claims: Iterable[ClaimCheck], pattern: str) -> tuple[ClaimCheck, ...]:
    """The claims whose check, parameters or words ``pattern`` matches.

    Raises:
        UserError: it matches none.
    """
    claims = tuple(claims)
    chosen = tuple(claim for claim in claims if matches(str(claim), pattern))
    if not chosen:
        examples = ", ".join(dict.fromkeys(claim.check for claim in claims))
        raise UserError(
            f"filter {pattern!r} matches no claim", accepted=f"a part or glob of {examples}, or of its words"
        )
    return chosen
