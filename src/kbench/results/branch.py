"""The commits of a branch, oldest first: the order in which a history is read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kbench.core import UserError

# Older commits than this are no history that anybody looks at.
_MOST = 20_000
# Shorter beginnings of a commit stand for several.
_SHORTEST = 7


def branch_commits(folder: Path, branch: str) -> list[str] | None:
    """Full commits of ``branch``, oldest first, each merge as one (its first parent); None outside of a repository.

    Raises:
        UserError: the repository has no such branch, or was cloned without what came before.
    """
    if _git(folder, "rev-parse", "--git-dir") is None:
        return None
    if branch.startswith("-") or _git(folder, "rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}") is None:
        known = (_git(folder, "branch", "--format=%(refname:short)") or "").split("\n")[:10]
        raise UserError(f"no branch or commit {branch!r}", where=str(folder), accepted=", ".join(filter(None, known)))
    if _git(folder, "rev-parse", "--is-shallow-repository") == "true":
        raise UserError("a shallow clone knows no history", where=str(folder), accepted="a whole clone",
                        todo="git fetch --unshallow; in a workflow, fetch-depth: 0 for actions/checkout")  # fmt: skip
    text = _git(folder, "rev-list", "--first-parent", f"--max-count={_MOST}", branch)
    return (text or "").split()[::-1]


def usual_branch(folder: Path) -> str | None:
    """``main``, or else ``master``, or else what is checked out; None outside of a repository."""
    for name in ("main", "master", "HEAD"):
        if _git(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") is not None:
            return name
    return None


class CommitOrder:
    """Places of commits on a branch, for full commits and for beginnings of them."""

    def __init__(self, commits: Sequence[str]) -> None:
        self._commits = list(commits)
        self._places = {commit: place for place, commit in enumerate(commits)}
        self._short: dict[str, int | None] = {}
        for commit, place in self._places.items():
            for length in range(_SHORTEST, 13):
                # Two commits that begin alike: neither is meant.
                self._short[commit[:length]] = None if commit[:length] in self._short else place

    def place(self, commit: str) -> int | None:
        """None for what is not on the branch: another branch's, a changed checkout's, a release's."""
        if commit in self._places:
            return self._places[commit]
        if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
            return None
        place = self._short.get(commit[:12])
        return place if place is not None and self._commits[place].startswith(commit) else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
