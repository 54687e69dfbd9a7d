"""An index of a store's records, one SQLite file beside them: what is where, without reading every line again.

It holds nothing that the records do not: when it is lost, broken or of another version it is made anew, and what was
appended since it was written is added before it answers.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import UserError

from .appendfile import read_whole_lines
from .record import Record

_VERSION = 1
NAME = "index.sqlite"
# Columns that can be asked for.
COLUMNS = ("key", "op", "implementation", "host_id", "commit", "suite", "status", "source", "unit", "threads")
_TABLES = f"""
CREATE TABLE files (path TEXT PRIMARY KEY, inode INTEGER, offset INTEGER, n_lines INTEGER);
CREATE TABLE records (
  path TEXT, line INTEGER, {", ".join(f'"{name}"' for name in COLUMNS)},
  created TEXT, median REAL, n_samples INTEGER, PRIMARY KEY (path, line)
);
CREATE INDEX by_key ON records (key, implementation);
PRAGMA user_version = {_VERSION};
"""


def _column(value: Any) -> Any:
    """``value`` as SQLite takes it: JSON and command lines can hold half of a character, UTF-8 cannot."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class FileSummary:
    """One file of the store: whose records, how many, from when to when."""

    path: str
    host_id: str
    commit: str
    suite: str
    n_records: int
    n_ok: int
    first: str
    last: str


class Index:
    """The index of the store at ``root``; up to date when it is made.

    Raises:
        UserError: it cannot be written there.
        CorruptFile: a whole line of a file is no record; the message has the file and the line.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / NAME
        self._connection = self._open()
        try:
            self._catch_up()
        except sqlite3.OperationalError as error:  # locked for too long, read-only, a full disk
            raise self._refused(error) from None
        except sqlite3.DatabaseError:  # its first page is sound, others are not
            self.rebuild()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rebuild(self) -> None:
        """Forgets everything and reads all files."""
        self._connection.close()
        self.path.unlink(missing_ok=True)
        self._connection = self._open()
        self._catch_up()

    def files(self) -> list[FileSummary]:
        """Every file, in the order of their names."""
        rows = self._rows(
            "SELECT path, min(host_id), min(\"commit\"), min(suite), count(*), sum(status = 'ok'), min(created), "
            "max(created) FROM records GROUP BY path ORDER BY path"
        )
        return [FileSummary(*row) for row in rows]

    def find(self, like: Mapping[str, str], *, since: str = "", limit: int | None = None) -> list[tuple[str, int]]:
        """(path below the root, line from 1) of the records whose columns hold or glob the texts of ``like``, oldest
        first, and with ``limit`` the newest of them. UserError for a column that there is not."""
        clauses, values = ["created >= ?"], [since]
        for name, text in like.items():
            if name not in COLUMNS:
                raise UserError(f"unknown column {name!r}", accepted=", ".join(COLUMNS))
            clauses.append(f'(instr("{name}", ?) > 0 OR "{name}" GLOB ?)')
            values += [text, text]
        rows = self._rows(
            f"SELECT path, line FROM records WHERE {' AND '.join(clauses)} ORDER BY created DESC, path DESC, line DESC "
            "LIMIT ?",
            [*map(_column, values), -1 if limit is None else limit],
        )
        return [(str(path), int(line)) for path, line in rows][::-1]

    def records(self, places: list[tuple[str, int]]) -> Iterator[Record]:
        """The records at ``places``, in their order."""
        lines: dict[str, list[bytes]] = {}
        for path, number in places:
            if path not in lines:
                lines[path] = read_whole_lines(self.root / path, 0)[0].split(b"\n")
            yield Record.from_json(lines[path][number - 1], f"{self.root / path}:{number}")

    def _rows(self, question: str, values: Sequence[str | int] = ()) -> list[Any]:
        try:
            return self._connection.execute(question, values).fetchall()
        except sqlite3.DatabaseError:
            self.rebuild()
            return self._connection.execute(question, values).fetchall()

    def _refused(self, error: Exception) -> UserError:
        return UserError(f"the index cannot be written: {error}", where=str(self.path),
                         todo="set KBENCH_RESULTS to a folder that you may write to")  # fmt: skip

    def _open(self) -> sqlite3.Connection:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=30)
            with contextlib.suppress(sqlite3.DatabaseError):
                if connection.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
                    connection.execute("SELECT path FROM files LIMIT 1").fetchone()
                    return connection
            connection.close()
            self.path.unlink(missing_ok=True)
            connection = sqlite3.connect(self.path, timeout=30)
            connection.executescript(_TABLES)
        except (OSError, sqlite3.OperationalError) as error:
            raise self._refused(error) from None
        return connection

    def _catch_up(self) -> None:
        known = {
            str(row[0]): row[1:] for row in self._connection.execute("SELECT path, inode, offset, n_lines FROM files")
        }
        found = {str(path.relative_to(self.root)): path for path in sorted(self.root.glob("*/*.jsonl"))}
        with self._connection:
            for gone in known.keys() - found.keys():
                self._forget(gone)
            for name, path in found.items():
                stat = path.stat()
                inode, offset, n_lines = known.get(name, (stat.st_ino, 0, 0))
                if inode != stat.st_ino or stat.st_size < offset:  # another file has taken its place
                    self._forget(name)
                    inode, offset, n_lines = stat.st_ino, 0, 0
                if stat.st_size > offset:
                    self._read(name, path, inode, offset, n_lines)

    def _read(self, name: str, path: Path, inode: int, offset: int, n_lines: int) -> None:
        data, _ = read_whole_lines(path, offset)
        suite = path.stem.partition("-")[2]
        rows = []
        for number, line in enumerate(data.split(b"\n")[:-1], start=n_lines + 1):
            record = Record.from_json(line, f"{path}:{number}")
            columns = [suite if column == "suite" else getattr(record, column) for column in COLUMNS]
            rows.append((name, number, *map(_column, (*columns, record.created)), record.median, len(record.samples)))
        marks = ", ".join("?" * (len(COLUMNS) + 5))
        self._connection.executemany(f"INSERT OR REPLACE INTO records VALUES ({marks})", rows)
        self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (name, inode, offset + len(data), n_lines + len(rows))
        )

    def _forget(self, name: str) -> None:
        self._connection.execute("DELETE FROM records WHERE path = ?", (name,))
        self._connection.execute("DELETE FROM files WHERE path = ?", (name,))
