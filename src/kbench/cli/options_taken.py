"""Which options go with what a verb was asked for: one that would change nothing is refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import typer

from kbench.core import UserError


def refuse_untaken(context: typer.Context, kind: str, taken: Mapping[str, Collection[str]]) -> None:
    """Checks that ``kind`` takes all that is on the command line.

    Args:
        kind: one of ``taken``, in words that a sentence may begin with.
        taken: what each kind takes: options by their first name, arguments in capitals.

    Raises:
        UserError: the first that it does not take, with what it does and who takes that one.
    """
    takes = taken[kind]
    for parameter in context.command.params:
        name = parameter.opts[0] if parameter.param_type_name == "option" else (parameter.name or "").upper()
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or name in takes:
            continue
        others = [other for other, names in taken.items() if name in names]
        raise UserError(
            f"{kind} does not take it", where=name, accepted=", ".join(sorted(n for n in takes if n.startswith("--"))),
            todo=f"{name} is for {' or '.join(others)}",
        )  # fmt: skip
