"""Imports somebody's own operator: only what is installed as one, or trusted on the command line."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from kbench.core import UserError, did_you_mean
from kbench.rules import ENTRY_POINT_GROUP, is_trusted

from .injected_operator import InjectedOperator


def import_operator(dotted: str, trust: Iterable[str] = (), where: str = "") -> type[InjectedOperator]:
    """The class at ``dotted``. Nothing is imported before it is known to be allowed.

    Raises:
        UserError: a package that is neither registered nor trusted, nothing there, or no operator.
    """
    module_name, _, name = dotted.rpartition(".")
    package = dotted.partition(".")[0]
    if not is_trusted(dotted, trust):
        raise UserError(
            f"{dotted} is in a package that may not be run",
            where=where,
            accepted=f"a package registered in the entry-point group {ENTRY_POINT_GROUP}, or trusted",
            todo=f"install it as one, or pass --trust {package}",
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{dotted} cannot be imported: {error}", where=where, todo="install it, or see PYTHONPATH"
        ) from error
    found = getattr(module, name, None)
    operators = [
        key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, InjectedOperator)
    ]
    if found is None:
        raise UserError(f"{module_name} has no {name!r}", where=where, todo=did_you_mean(name, operators))
    if not (isinstance(found, type) and issubclass(found, InjectedOperator)):
        raise UserError(f"{dotted} is no subclass of kbench.engine.InjectedOperator", where=where)
    return found
