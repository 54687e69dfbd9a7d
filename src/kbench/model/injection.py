"""Modules that somebody's own operators do: all calls of such a module become one that nobody looks into."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from kbench.core import INJECTED, OpCall, Problem, UserError, Value, is_injected

from .draft import Draft


def inject(draft: Draft) -> None:
    """Replaces in ``draft`` the calls of every module that is placed on an operator of somebody's own.

    The new call reads what the module's calls read from elsewhere, in the order of their first use, and makes what
    others read of theirs. Where such modules lie inside one another, the outermost does it all; the root is none.

    Raises:
        UserError: a module whose work is no single stretch of calls, or that has no calls of its own.
    """
    operators = _operators(draft)
    if not operators:
        return
    groups = _groups(draft, operators)
    for error in _refused(operators, groups):
        raise error
    kept: list[OpCall] = []
    begins = {indices[0]: (name, indices) for name, indices in groups.items()}
    taken = {index for indices in groups.values() for index in indices}
    for index, call in enumerate(draft.calls):
        if index in begins:
            name, indices = begins[index]
            kept.append(_one_call(draft, name, operators[name], indices))
        if index not in taken:
            kept.append(call)
    draft.calls[:] = kept


def refused_operators(draft: Draft) -> list[UserError]:
    """What ``inject`` would raise, for every module that it would raise it for."""
    operators = _operators(draft)
    return list(_refused(operators, _groups(draft, operators)))


def _operators(draft: Draft) -> dict[str, str]:
    return {
        name: placement.implementation(draft.phase)
        for name, placement in draft.assignment.items()
        if name and is_injected(placement.implementation(draft.phase))
    }


def _groups(draft: Draft, operators: Mapping[str, str]) -> dict[str, list[int]]:
    """The places of the calls that each operator does."""
    groups: dict[str, list[int]] = {}
    for index, call in enumerate(draft.calls):
        owner = outermost(call.module, operators)
        if owner is not None:
            groups.setdefault(owner, []).append(index)
    return groups


def _refused(operators: Mapping[str, str], groups: Mapping[str, Sequence[int]]) -> Iterator[UserError]:
    for name, operator in operators.items():
        parent = name.rpartition(".")[0]
        if outermost(name, operators) != name:
            continue
        if name not in groups:
            found = f"{operator} would replace a module that does no work of its own"
            yield UserError(found, where=name, todo=f"replace {parent}")
        elif groups[name][-1] - groups[name][0] + 1 != len(groups[name]):
            found = f"{operator} would replace a module that is used at several places of {parent}"
            yield UserError(found, where=name, todo=f"replace {parent}")


def outermost(module: str, names: Collection[str] | Mapping[str, str]) -> str | None:
    """The highest of ``names`` that is ``module`` or lies above it."""
    parts = module.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((name for name in above if name in names), None)


def boundary(calls: Sequence[OpCall], rest: Sequence[OpCall]) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """What ``calls`` read that none of them makes, and what they make that ``rest`` reads, or nobody."""
    made = {value.name: value for call in calls for value in call.outputs}
    inputs = dict.fromkeys(name for call in calls for name in call.inputs if name not in made)
    inside = {name for call in calls for name in call.inputs}
    outside = {name for call in rest for name in call.inputs}
    return tuple(inputs), tuple(v for name, v in made.items() if name in outside or name not in inside)


def _one_call(draft: Draft, name: str, operator: str, indices: Sequence[int]) -> OpCall:
    calls = draft.calls[indices[0] : indices[-1] + 1]
    inputs, outputs = boundary(calls, [*draft.calls[: indices[0]], *draft.calls[indices[-1] + 1 :]])
    widths = {value.name: value.width for call in draft.calls for value in call.outputs}
    problem = Problem.make(
        INJECTED,
        operator=operator,
        k=sum(widths.get(name, 1) for name in inputs),
        n=sum(value.width for value in outputs),
        tokens=draft.tokens,
    )
    weights = tuple(dict.fromkeys(weight for call in calls for weight in call.weights))
    placement = draft.assignment[name]
    device = placement.device(draft.phase)
    return OpCall(INJECTED, problem, operator, device, name, inputs, outputs, weights, {}, placement.threads)
