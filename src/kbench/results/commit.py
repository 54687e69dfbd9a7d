"""Which kbench a number was measured with."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from kbench import __version__

_PACKAGE = Path(__file__).parents[1]


@lru_cache(maxsize=1)
def current_commit() -> str:
    """The full commit of the checkout that this package lies in, ``-dirty`` when its source differs from it.

    ``v0.1.0`` for an installed package: the user's own repository, where the command may run, is not ours to name.
    """
    checkout = _PACKAGE.parents[1]
    if _PACKAGE.parent.name != "src" or not (checkout / ".git").exists():
        return f"v{__version__}"
    head = _git(checkout, "rev-parse", "--verify", "HEAD")
    if not head:
        return f"v{__version__}"
    return f"{head}-dirty" if _git(checkout, "status", "--porcelain", "--untracked-files=no", "--", "src") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
