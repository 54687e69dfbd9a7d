"""What people know about steps of a history: a YAML file that is edited by hand, or by `kbench track mark`.

kbench_marks: 1
marks:
- {case: "linear(quant=Q4_K*", commit: 3f2a91c, mark: accepted, why: checks its bounds now}
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from kbench.core import Lines, UserError, did_you_mean, load_yaml, write_whole
from kbench.measure import MarkKind

KINDS = get_args(MarkKind)
NAME = "marks.yaml"

_VERSION = 1
_HEAD = f"""# What is known about steps in the history of measurements; each is of the cases its pattern matches.
# accepted: wanted, and the new normal; environment: the machine changed, not the code; fixed: dealt with by then.
kbench_marks: {_VERSION}
marks:
"""
_FIELDS = ("case", "commit", "mark", "why", "host")
_ACCEPTED = "case, commit, mark (accepted, environment or fixed), and, if known, why and host"


@dataclass(frozen=True, slots=True)
class Mark:
    """``case`` is a key or a glob of keys, ``commit`` a commit or its beginning (seven digits), ``host`` a host id or
    nothing for every host."""

    case: str
    commit: str
    kind: MarkKind
    why: str = ""
    host: str = ""

    def is_of(self, key: str, host_id: str) -> bool:
        return self.host in ("", host_id) and (self.case == key or fnmatch.fnmatchcase(key, self.case))


def load_marks(path: Path) -> list[Mark]:
    """The marks in ``path``; none when there is no such file.

    Raises:
        UserError: it is no file of marks; the message has the line.
    """
    if not path.exists():
        return []
    data = load_yaml(path)
    if not isinstance(data, Lines) or "kbench_marks" not in data:
        raise UserError("no file of marks", where=str(path), accepted=f"kbench_marks: {_VERSION} and a list of marks")
    if data["kbench_marks"] != _VERSION:
        found = f"kbench_marks: {json.dumps(data['kbench_marks'], default=str)[:40]}"
        raise UserError(found, where=f"{path}:{data.line_of('kbench_marks')}", accepted=f"kbench_marks: {_VERSION}")
    unknown = [name for name in data if name not in ("kbench_marks", "marks")]
    if unknown:
        raise UserError(f"unknown {unknown[0]!r}", where=f"{path}:{data.line_of(unknown[0])}", accepted="marks")
    marks = data.get("marks") or []
    where = f"{path}:{data.line_of('marks')}"
    if not isinstance(marks, list):
        raise UserError("marks is no list", where=where, accepted="- {case: ..., commit: ..., mark: accepted}")
    return [_mark(entry, path, where) for entry in marks]


def _mark(entry: object, path: Path, where: str) -> Mark:
    if not isinstance(entry, Lines):
        raise UserError(f"a mark is {json.dumps(entry, default=str)[:60]}", where=where, accepted=_ACCEPTED)

    def bad(name: str, found: str, accepted: str) -> UserError:
        return UserError(found, where=f"{path}:{entry.line_of(name)}", accepted=accepted)

    for name in entry:
        if name not in _FIELDS:
            raise bad(name, f"unknown {name!r}{'; ' if did_you_mean(name, _FIELDS) else ''}"
                      f"{did_you_mean(name, _FIELDS)}", _ACCEPTED)  # fmt: skip
    texts = {}
    for name in _FIELDS:
        value = entry.get(name, "")
        # A commit of digits alone is a number to YAML.
        if name == "commit" and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise bad(name, f"{name} is {json.dumps(value, default=str)[:60]}", "text; in quotes where YAML sees more")
        texts[name] = value
    for name in ("case", "commit", "mark"):
        if not texts[name]:
            raise bad(name, f"{name} is missing", _ACCEPTED)
    if texts["mark"] not in KINDS:
        raise bad("mark", f"mark is {texts['mark'][:60]!r}", ", ".join(KINDS))
    _check_texts(texts["case"], texts["commit"], f"{path}:{entry.line_of('commit')}")
    return Mark(texts["case"], texts["commit"], cast("MarkKind", texts["mark"]), texts["why"], texts["host"])


def _check_texts(case: str, commit: str, where: str) -> None:
    """UserError for what is no case, or no commit: a hash, or the ``v0.1.0`` of a release."""
    if not case:
        raise UserError("no case", where=where, accepted="a case's key, or a glob of keys")
    if not re.fullmatch(r"[\w.+-]{4,80}", commit):
        raise UserError(
            f"commit is {commit[:60]!r}", where=where, accepted="a commit, or at least its first seven digits"
        )


def add_mark(path: Path, mark: Mark) -> None:
    """Writes ``mark`` at the end of ``path``, whose comments stay; the file is made if need be.

    Raises:
        UserError: the file is none of marks, or cannot be written.
    """
    _check_texts(mark.case, mark.commit, "kbench track mark")
    n_before = len(load_marks(path))
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    if not text.endswith("\n"):
        text += "\n"
    fields = {"case": mark.case, "commit": mark.commit, "mark": mark.kind, "why": mark.why, "host": mark.host}
    # JSON texts are YAML's too, whatever is in them.
    line = ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items() if value)
    indent = _indent(text)
    made = f"{text}{indent}- {{{line}}}\n"
    write_whole(path, made.encode())
    try:
        whole = len(load_marks(path)) == n_before + 1
    except UserError:
        whole = False
    if not whole:  # the file goes on otherwise than ours: leave it to its owner
        write_whole(path, text.encode())
        raise UserError("the list of marks does not end the file", where=str(path), todo=f"add: - {{{line}}}")


def _indent(text: str) -> str:
    """What the last entry of the list stands behind."""
    starts: Sequence[str] = re.findall(r"^( *)- ", text, re.M)
    return starts[-1] if starts else ""
