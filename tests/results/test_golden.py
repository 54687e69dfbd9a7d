"""Records as former versions wrote them are read for good: one file for each schema that ever was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbench.core import CorruptFile
from kbench.results import Record, blocks_of, is_aa, read_records, track_fields
from kbench.results.record import SCHEMA, UPGRADES

GOLDEN = Path(__file__).with_name("golden")


def test_there_is_a_file_of_every_schema() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.jsonl")) == [f"schema-{n}" for n in range(1, SCHEMA + 1)]
    assert sorted(UPGRADES) == list(range(1, SCHEMA))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_line_is_read_and_written_back_with_nothing_lost(path: Path) -> None:
    records, lines = read_records(path), path.read_text().splitlines()
    assert len(records) == len(lines) > 0
    for record, line in zip(records, lines, strict=True):
        assert record.schema == SCHEMA and Record.from_json(record.to_json()) == record
        if json.loads(line)["schema"] == SCHEMA:
            assert json.loads(record.to_json()) == json.loads(line)


def test_what_schema_1_said() -> None:
    measured, failed, paired, aa, *blocks = read_records(GOLDEN / "schema-1.jsonl")
    assert measured.core_problem().key == "linear(quant=Q4_K,n=512,k=1536,tokens=1)"
    assert measured.median == 6.25e-05 and len(measured.samples) == 4 and measured.extra["block"] == {"rows": 16}
    assert failed.status == "unsupported" and failed.median is None and failed.reason
    assert paired.unit == "ratio" and paired.extra["compare"]["verdict"] == "REGRESSED" and not is_aa(paired)
    assert is_aa(aa)
    assert [track_fields(block)["index"] for block in blocks] == [0, 1]
    assert measured.extra["a_field_of_later"] == [1, {"x": None}]
    cases = blocks_of(blocks)
    assert [case.seconds for case in cases.values()] == [(6.2e-05, 6.4e-05)]


def test_an_older_schema_goes_through_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (GOLDEN / "schema-1.jsonl").read_text().splitlines()[0]
    steps = {-1: lambda data: {**data, "name": data["title"]}, 0: lambda data: {**data, "key": data["name"]}}
    monkeypatch.setattr("kbench.results.record.UPGRADES", steps)
    old = {**json.loads(line), "schema": -1, "title": "linear(x)"}
    del old["key"]
    assert Record.from_json(json.dumps(old)).key == "linear(x)"
    with pytest.raises(CorruptFile, match="schema 2"):
        Record.from_json(json.dumps({**old, "schema": 2}))
