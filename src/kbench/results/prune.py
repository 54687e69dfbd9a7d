"""Which records of a store can go, and taking them out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .appendfile import keep_lines
from .index import Index


@dataclass(frozen=True, slots=True)
class Pruned:
    """Records that went, files that went with all of theirs, records that stayed."""

    n_records: int
    n_files: int
    n_kept: int


def old_places(index: Index, *, before: str, keep: int, suite: str = "") -> set[tuple[str, int]]:
    """(path, line) of records that were created before ``before`` (ISO 8601) and are not among the newest ``keep`` of
    their case, implementation, device and kernel parameters; of ``suite`` alone, where one is named."""
    found: set[tuple[str, int]] = set()
    newest: dict[tuple[str, ...], int] = {}
    places = index.find({"suite": suite} if suite else {})
    for place, record in zip(reversed(places), reversed(list(index.records(places))), strict=True):
        block = json.dumps(record.extra.get("block", {}), sort_keys=True)
        case = (record.host_id, record.key, record.implementation, record.device, block)
        newest[case] = newest.get(case, 0) + 1
        if newest[case] > keep and record.created < before:
            found.add(place)
    return found


def prune(root: Path, places: set[tuple[str, int]]) -> Pruned:
    """Takes the records at ``places`` out of their files; what others append meanwhile stays.

    Raises:
        UserError: a file cannot be written.
    """
    by_file: dict[str, set[int]] = {}
    for path, line in places:
        by_file.setdefault(path, set()).add(line)
    n_records = n_files = n_kept = 0
    for name, numbers in by_file.items():
        position = 0

        def stays(_: bytes, gone: set[int] = numbers) -> bool:
            nonlocal position
            position += 1
            return position not in gone

        kept, before = keep_lines(root / name, stays)
        n_records, n_files, n_kept = n_records + before - kept, n_files + (not kept), n_kept + kept
    return Pruned(n_records, n_files, n_kept)
