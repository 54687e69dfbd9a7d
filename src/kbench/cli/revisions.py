"""What verbs that take git revisions share: finding them, building them with words on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbench.core import UserError

from .output import shown, stderr_console

if TYPE_CHECKING:
    from kbench.suites import Built, Revision

# The kbench that runs the verb, in place of a revision.
INSTALLED = "installed"


def tell(text: str) -> None:
    """A line on stderr."""
    stderr_console().print(shown(text), markup=False)


def built_revision(name: str, folder: Path | None = None) -> Built:
    """``name`` ready to run; ``installed`` is the kbench that runs this.

    Raises:
        UserError: no such revision, or no checkout here.
        BuildFailed: it cannot be built.
    """
    from kbench.suites import build, installed

    found = check_revision(name, folder)
    return installed() if found is None else build(found, tell=tell)


def check_revision(name: str, folder: Path | None = None) -> Revision | None:
    """What ``name`` stands for, looked up only; None for ``installed``.

    Raises:
        UserError: no such revision, or no checkout here.
    """
    from kbench.suites import find_revision, repository_of

    if name == INSTALLED:
        return None
    repository = repository_of(folder or Path.cwd())
    if repository is None:
        raise UserError(
            "not in a git checkout of kbench", where=str(folder or Path.cwd()),
            accepted=f"a checkout, for revisions; {INSTALLED} is the kbench that runs this",
        )  # fmt: skip
    return find_revision(repository, name)


def default_revision() -> str:
    """``HEAD`` in a checkout of kbench, else ``installed``."""
    from kbench.suites import repository_of

    return "HEAD" if repository_of(Path.cwd()) is not None else INSTALLED
