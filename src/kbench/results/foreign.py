"""What records of every other tool need: texts of a bearable length, a host id, a time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone

from kbench.core import CorruptFile

UNVERSIONED = "unversioned"
# What llama.cpp calls a build that no repository is known of.
_NO_COMMIT = ("unknown",)

# Of a name or parameter: what a case key can hold and a person read.
_MAX_CHARS = 300


def bounded(text: str) -> str:
    """``text``, or its beginning with a hash of all of it: two long names stay two."""
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[:_MAX_CHARS]}...{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def foreign_host_id(machine: Mapping[str, object]) -> str:
    """Of what a file says of its machine: never the id of a machine that kbench has seen itself."""
    text = json.dumps(machine, sort_keys=True)
    return f"import-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def utc(text: str, where: str, field: str) -> str:
    """A time as records have it. CorruptFile for a text that is none; without a zone it is taken for UTC."""
    # Before Python 3.11 fromisoformat knows no Z, and no more or fewer than three or six digits after the point.
    plain = re.sub(r"\.\d+", "", text.strip()[:60])
    plain = f"{plain[:-1]}+00:00" if plain.endswith("Z") else plain
    try:
        time = datetime.fromisoformat(plain)
        time = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
        return time.astimezone(timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise CorruptFile(f"{field} is {json.dumps(text[:60])}", where=where, accepted="a time, ISO 8601") from None


def commit_name(text: str) -> str:
    """``text`` as the name of a commit in a store; what could be none is ``UNVERSIONED``."""
    is_name = re.fullmatch(r"[\w+-][\w.+-]{0,79}", text) and text not in _NO_COMMIT
    return text if is_name else UNVERSIONED
