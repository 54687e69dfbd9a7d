"""The store: ``<root>/<host_id>/<commit8>-<suite>.jsonl``, append-only, one record a line.

Beside them ``host.json`` holds the machine's fingerprint. Files grow at their end (only ``prune`` ever makes one
shorter); the newest record of a case wins.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kbench.core import UserError, write_whole
from kbench.measure import host

from .appendfile import append_lines, read_whole_lines
from .record import Record


def default_root() -> Path:
    """Where records go: KBENCH_RESULTS, else ``results/local`` of a checkout, else the user's data folder."""
    chosen = os.environ.get("KBENCH_RESULTS")
    if chosen:
        return Path(chosen).expanduser()
    here = Path.cwd()
    if (here / "src/kbench/results").is_dir():
        return here / "results" / "local"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "kbench" / "results"


@dataclass(slots=True)
class _Known:
    """What was read of one file, up to the end of its last whole line then."""

    inode: int
    offset: int = 0
    n_lines: int = 0
    records: list[Record] = field(default_factory=list)
    warned: bool = False


class Store:
    """Records in a folder; safe to use from several processes at once.

    Reading again after an append costs only the new lines: files grow at their end alone.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._known: dict[Path, _Known] = {}

    def path(self, record: Record, suite: str) -> Path:
        """The file that ``record`` belongs to. UserError for names that would leave the folder."""
        for name, text in (("suite", suite), ("host_id", record.host_id), ("commit", record.commit)):
            if not re.fullmatch(r"[\w.+-]{1,80}", text) or text.startswith("."):
                raise UserError(f"{name} {text!r}", where=str(self.root), accepted="letters, digits, _ . + -")
        commit = record.commit if record.commit.startswith("v") else record.commit[:8]
        return self.root / record.host_id / f"{commit}-{suite}.jsonl"

    def beside(self, host_id: str, name: str) -> Path:
        """A file called ``name`` beside the records of ``host_id``, in a folder that is there.

        Raises:
            UserError: the folder cannot be made.
        """
        folder = self.root / host_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"results cannot be written: {error.strerror}", where=str(folder)) from None
        return folder / name

    def append(self, records: Record | Iterable[Record], *, suite: str = "local") -> None:
        """Stores ``records`` for good: they are on the disk when this returns, all of one file or none.

        Raises:
            UserError: the disk is full or read-only, or a name is none.
        """
        by_path: dict[Path, list[bytes]] = {}
        for record in [records] if isinstance(records, Record) else records:
            by_path.setdefault(self.path(record, suite), []).append(record.to_json().encode() + b"\n")
        for path, lines in by_path.items():
            append_lines(path, b"".join(lines))
            self._remember_host(path.parent)

    def _remember_host(self, folder: Path) -> None:
        path = folder / "host.json"
        if folder.name != host().host_id or path.exists():
            return
        write_whole(path, (json.dumps(host().as_dict(), indent=2) + "\n").encode())

    def read(self, host_id: str | None = None) -> Iterator[Record]:
        """Every record (of one host), file by file, in the order written.

        A line that a killed writer left unfinished is skipped with a warning.

        Raises:
            CorruptFile: a whole line is no record; the message has the file and the line.
        """
        for path in sorted(self.root.glob(f"{host_id or '*'}/*.jsonl")):
            yield from self._records(path)

    def find(
        self,
        *,
        key: str | None = None,
        implementation: str | None = None,
        host_id: str | None = None,
        status: str | None = None,
        op: str | None = None,
        threads: int | None = None,
        source: str | None = None,
        op_spec_hash: str | None = None,
        commit: str | None = None,
    ) -> list[Record]:
        """The records that match every filter that is given, oldest first."""
        wanted = {
            "key": key, "implementation": implementation, "host_id": host_id, "status": status, "op": op,
            "threads": threads, "source": source, "op_spec_hash": op_spec_hash, "commit": commit,
        }  # fmt: skip
        filters = [(name, value) for name, value in wanted.items() if value is not None]
        found = [r for r in self.read(host_id) if all(getattr(r, name) == value for name, value in filters)]
        return sorted(found, key=lambda record: record.created)  # stable: lines of one second stay in file order

    def latest(self, key: str, implementation: str, **filters: str | int) -> Record | None:
        """The newest record of a case, or None; ``filters`` as in ``find``."""
        found = self.find(key=key, implementation=implementation, **filters)  # type: ignore[arg-type]
        return found[-1] if found else None

    def _records(self, path: Path) -> list[Record]:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return []
        known = self._known.get(path)
        if known is None or known.inode != stat.st_ino or stat.st_size < known.offset:
            known = self._known[path] = _Known(stat.st_ino)
        if stat.st_size == known.offset:
            return known.records
        data, torn = read_whole_lines(path, known.offset)
        records = []
        for number, line in enumerate(data.split(b"\n")[:-1], start=known.n_lines + 1):
            records.append(Record.from_json(line, f"{path}:{number}"))
        known.offset += len(data)
        known.n_lines += len(records)
        known.records = known.records + records  # a new list: an iteration over the old one stays as it was
        if torn and not known.warned:
            known.warned = True
            warnings.warn(f"{path}: the last line is unfinished (a writer was killed) and is skipped", stacklevel=3)
        return known.records
