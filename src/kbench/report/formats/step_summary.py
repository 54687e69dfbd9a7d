"""Markdown for GitHub's step summary: what matters most first, and never more than GitHub takes.

A summary of more than 1024 KiB is dropped as a whole, and one just below it silently (actions/runner#4337), so what
does not fit here is counted instead of written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kbench.core import shown
from kbench.results import BROKEN, VerdictRow, by_importance

from ..tables import milliseconds, rate
from .sheet import Sheet, in_words, is_failure, name_of

# Of 1024 KiB; another step's words may stand before ours in the same file.
MAX_BYTES = 900 << 10
_HEAD = ("case", "A", "B", "B/A", "interval", "pairs", "verdict")
_MAX_CELL = 400


def step_summary(sheet: Sheet, most_bytes: int = MAX_BYTES) -> str:
    """The summary, at most ``most_bytes`` long."""
    rows = by_importance(sheet.rows)
    first = [row for row in rows if row.verdict != "SAME"]
    rest = [row for row in rows if row.verdict == "SAME"]
    text = _Bounded(most_bytes)
    text.add([f"## {escaped(sheet.verb)}: {escaped(headline(sheet))}", ""])
    about = " · ".join(filter(None, [sheet.created[:10], sheet.commit[:12], f"host {sheet.host_id}"]))
    text.add([escaped(about), ""])
    text.add([f"> {escaped(note)}" for note in sheet.notes[:20]] + [""])
    if first:
        text.table(first, sheet)
    if rest:
        text.add(["", f"<details><summary>{len(rest)} the same</summary>", ""], closing="\n</details>\n")
        text.table(rest, sheet)
    return text.finished()


def headline(sheet: Sheet) -> str:
    """What came of it in one line."""
    slower = [row for row in sheet.rows if row.verdict == "REGRESSED"]
    broken = [row for row in sheet.rows if row.outcome in BROKEN]
    unknown = sum(row.verdict == "INCONCLUSIVE" or row.status == "disturbed" for row in sheet.rows)
    parts = []
    if broken:
        parts.append(f"{len(broken)} broken")
    if slower:
        most = max((row.ratio or 1.0) for row in slower)
        parts.append(f"{len(slower)} of {len(sheet.rows)} cases slower, {most:.3g}× at most")
    if not parts:
        parts.append(f"nothing slower in {len(sheet.rows)} cases" if len(sheet.rows) != unknown else "nothing known")
    faster = sum(row.verdict == "IMPROVED" for row in sheet.rows)
    parts += [f"{faster} faster"] if faster else []
    parts += [f"{unknown} not known"] if unknown else []
    return ", ".join(parts)


def escaped(text: str) -> str:
    """Text of others as Markdown shows it: no markup, no HTML, no mention of anybody, one line."""
    line = " ".join(shown(text[: 4 * _MAX_CELL]).split())
    line = line if len(line) <= _MAX_CELL else f"{line[: _MAX_CELL - 1]}…"
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u2060")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", line)


class _Bounded:
    """Lines up to a size in bytes, with room kept for what must close them."""

    # For the line that says what is left out.
    _ROOM = 200

    def __init__(self, most: int) -> None:
        self._most, self._size, self._lines, self._closing, self._left_out = most - self._ROOM, 0, [""], "", 0
        self._lines.clear()

    def add(self, lines: Iterable[str], closing: str = "") -> bool:
        """All of ``lines`` or none; ``closing`` comes at the very end."""
        text = [*lines]
        size = sum(len(line.encode("utf-8", "replace")) + 1 for line in text) + len(closing)
        if self._size + size > self._most:
            return False
        self._size += size
        self._lines += text
        self._closing += closing
        return True

    def table(self, rows: Sequence[VerdictRow], sheet: Sheet) -> None:
        head = ["| " + " | ".join(_HEAD) + " |", "|---|" + "---:|" * (len(_HEAD) - 2) + "---|"]
        if not self.add(head):
            self._left_out += len(rows)
            return
        for done, row in enumerate(rows):
            if not self.add([_line(row, sheet)]):
                self._left_out += len(rows) - done
                return

    def finished(self) -> str:
        left = [f"\n{self._left_out} more cases do not fit here."] if self._left_out else []
        return "\n".join([*self._lines, self._closing.strip("\n"), *left]).rstrip("\n") + "\n"


def _line(row: VerdictRow, sheet: Sheet) -> str:
    sides = [_speed(row, seconds) for seconds in (row.a_seconds, row.b_seconds)]
    ratio = f"**{row.ratio:.3g}×**" if row.ratio is not None else ""
    interval = f"{row.low:.3g}–{row.high:.3g}" if row.low is not None and row.high is not None else ""
    words = f"{'❌ ' if is_failure(sheet, row) or row.outcome in BROKEN else ''}{escaped(row.outcome)}"
    if row.verdict in ("", "INCONCLUSIVE") and row.reason:
        words = f"{words}: {escaped(in_words(row).partition(': ')[2] if not row.verdict else row.reason)}"
    cells = [escaped(name_of(row)), *sides, ratio, interval, str(row.n_pairs or ""), words]
    return f"| {' | '.join(cells)} |"


def _speed(row: VerdictRow, seconds: float | None) -> str:
    if seconds is None or seconds <= 0:
        return ""
    return f"{rate(row.tokens / seconds)} tokens/s" if row.tokens else f"{milliseconds(seconds)} ms"
