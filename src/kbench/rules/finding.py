"""What a check has to say about a rule file: one located message each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Severity(str, Enum):
    """An error stops loading; a warning is probably a mistake; an info is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def __str__(self) -> str:
        return self.value


ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True)
class Finding:
    """``path:line: where · what was found · what is accepted · what to do``. Of a model's file ``line`` is 0, and not
    shown.

    ``code`` names the kind of mistake and stays the same between versions, e.g. ``unknown-key``.
    """

    code: str
    severity: Severity
    path: str
    line: int
    where: str
    found: str
    accepted: str = ""
    todo: str = ""

    def __str__(self) -> str:
        parts = [self.where, self.found]
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        if self.todo:
            parts.append(self.todo)
        return f"{self.path}{f':{self.line}' if self.line else ''}: {' · '.join(parts)}"

    def as_dict(self) -> dict[str, str | int]:
        """For ``--json``."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "path": self.path,
            "line": self.line,
            "where": self.where,
            "found": self.found,
            "accepted": self.accepted,
            "todo": self.todo,
        }

    def strict(self) -> Finding:
        """The same as an error where it was a warning."""
        return replace(self, severity=ERROR) if self.severity is WARNING else self
