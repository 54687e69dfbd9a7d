"""The record: round trips, unknown fields kept, and nothing untrusted gets through."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbench.core import CorruptFile, Problem
from kbench.measure import FixedCount, measure
from kbench.results import Record

LINEAR = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)
LINE = json.loads(Record.make(LINEAR, "cpu.avx2", threads=2, result=[0.1]).to_json())


def test_make_fills_what_the_moment_knows() -> None:
    taken = measure(lambda: None, stopping=FixedCount(5), warmup=2)
    record = Record.make(LINEAR, "cpu.avx2", threads=2, result=taken, extra={"warnings": ["busy"]})
    assert record.key == "linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)"
    assert (record.op, record.problem["n"], record.core_problem()) == ("linear", 1536, LINEAR)
    assert record.samples == taken.samples_seconds
    assert record.median == taken.median_seconds
    assert record.stop_reason.startswith("count")
    assert record.extra["n_warmup"] == 2
    assert record.host_id and record.commit and record.created.endswith("+00:00")
    assert Record.from_json(record.to_json()) == record


def test_other_measurements_have_a_name_and_parameters() -> None:
    record = Record.make(
        ("read_bandwidth", {}), "cpu.avx2", threads=2, result=[4e10, 5e10, 6e10], unit="bytes/s", direction="higher"
    )
    assert (record.key, record.median) == ("read_bandwidth(threads=2)", 5e10)
    assert Record.from_json(record.to_json()) == record


def test_a_field_of_a_newer_version_is_kept_and_written_back() -> None:
    line = json.dumps({**LINE, "energy_joules": {"cpu": [1, 2]}, "note": "x"})
    again = json.loads(Record.from_json(line).to_json())
    assert again["energy_joules"] == {"cpu": [1, 2]}
    assert again == json.loads(line)


def test_extra_never_overwrites_a_field() -> None:
    record = dataclasses.replace(Record.from_json(json.dumps(LINE)), extra={"median": 7})
    assert json.loads(record.to_json())["median"] == 0.1


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20), st.text(max_size=30))
def test_any_finite_samples_and_any_text_survive(samples: list[float], reason: str) -> None:
    record = Record.make(LINEAR, "x", threads=1, result=samples, reason=reason)
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line.encode()) == record


def test_a_file_name_that_is_no_text_does_not_break_the_line() -> None:
    record = Record.make(LINEAR, "x", reason="no such file: caf\udce9")
    assert Record.from_json(record.to_json().encode()).reason == "no such file: caf?"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 2}, "schema 2 · accepted: schema 1"),
        ({"schema": None}, "schema is null"),
        ({"schema": True}, "schema is true"),
        ({"key": ""}, "key is"),
        ({"op": 5}, "op is 5"),
        ({"samples": "x"}, "samples is"),
        ({"samples": [0.1, None]}, "samples is"),
        ({"samples": [True]}, "samples is"),
        ({"samples": [10**400]}, "samples is"),
        ({"median": "fast"}, "median is"),
        ({"median": 10**400}, "finite"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"status": "great"}, "accepted: ok, skipped"),
        ({"status": []}, "accepted: ok, skipped"),
        ({"direction": "up"}, "accepted: lower, higher"),
        ({"problem": {"n": []}}, "problem is"),
        ({"problem": []}, "problem is"),
        ({"created": 12}, "created is 12"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        Record.from_json(json.dumps({**LINE, **change}), "results.jsonl:7")
    assert str(caught.value).startswith("results.jsonl:7: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "3", "{", '{"schema": 1}', "\x00", b"\xff\xfe{}", "[" * 100_000, '{"schema": ' + "9" * 5000 + "}",
        json.dumps(LINE).replace("0.1", "NaN"), json.dumps(LINE).replace("0.1", "1e999"),
        json.dumps(LINE).replace("0.1", "-Infinity"), json.dumps(LINE)[:-1] + ', "new": 1e999}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(line: str | bytes) -> None:
    with pytest.raises(CorruptFile):
        Record.from_json(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(LINE)), inner, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from(sorted(LINE)),
)
def test_any_value_in_any_field_is_read_or_refused(value: object, name: str) -> None:
    try:
        record = Record.from_json(json.dumps({**LINE, name: value}))
    except CorruptFile:
        return
    assert Record.from_json(record.to_json()) == record
