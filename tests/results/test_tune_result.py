"""The stored result of a tune: written whole, read checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbench.core import CorruptFile, UserError
from kbench.results import read_tune_result, tune_result_path, write_tune_result

# A field of its own for each kind of value, and what an object of the first version had.
FIELDS: dict[str, Any] = {
    "model": {"name": "M", "arch": "llama", "params": 1, "bytes": 2, "quant": "Q8_0", "source": "m.gguf"},
    "host_id": "h", "host": None, "gpu": None,
    "budgets": {"vram_bytes": 0, "dram_bytes": 1 << 30},
    "workload": {"prompt_tokens": 8, "gen_tokens": 4, "context": 16},
    "ops": [],
    "placement": {
        "cpu": {"weights_bytes": 1, "kv_bytes": 2, "workspace_bytes": 3, "total_bytes": 6, "budget_bytes": 9},
    },
    "predicted": {"decode_tokens_per_s": 1.5, "prefill_tokens_per_s": 9.0, "source": "measured"},
    "measured": None, "notes": [],
    "solver": {"status": "optimal", "gap": 0.0, "seconds": 1.0, "greedy_seconds": None},
}  # fmt: skip


def test_what_is_written_is_read_and_found_beside_the_rules(tmp_path: Path) -> None:
    rules = tmp_path / "deep" / "model.v1.yaml"
    path = tune_result_path(rules)
    assert path.name == "model.v1.tune.json"
    write_tune_result(path, {**FIELDS, "a field of a later version": [1]})
    assert read_tune_result(path)["predicted"]["decode_tokens_per_s"] == 1.5
    assert read_tune_result(rules) == read_tune_result(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_text_that_is_no_unicode_can_be_stored(tmp_path: Path) -> None:
    write_tune_result(tmp_path / "r.tune.json", {**FIELDS, "notes": ["file \udcff"]})
    assert read_tune_result(tmp_path / "r.tune.json")["notes"] == ["file ?"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "kbench.tune/2"}, 'schema "kbench.tune/2"'),
        ({"ops": {}}, "ops is a JSON dict"),
        ({"ops": [{"op": "linear"}]}, "ops[0].module is missing"),
        ({"host_id": 3}, "host_id is 3"),
        ({"predicted": {"decode_tokens_per_s": -1.0}}, "predicted.decode_tokens_per_s is -1.0"),
        ({"predicted": {"decode_tokens_per_s": 1e300}}, "predicted.decode_tokens_per_s"),
        ({"predicted": {"decode_tokens_per_s": True}}, "predicted.decode_tokens_per_s is true"),
        ({"predicted": {**FIELDS["predicted"], "source": "guessed"}}, 'predicted.source is "guessed"'),
        ({"placement": {"cpu": {**FIELDS["placement"]["cpu"], "kv_bytes": 10**400}}}, "kv_bytes"),
        ({"ceilings": [{"device": "cpu"}]}, "ceilings[0]"),
        ({"planned": {"decode_tokens_per_s": 1.0}}, "planned.prefill_tokens_per_s is missing"),
        ({"check": {"prediction": "guessed", "run": "now", "created": ""}}, 'check.prediction is "guessed"'),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "r.tune.json"
    path.write_text(json.dumps({"schema": "kbench.tune/1", **FIELDS, **change}))
    with pytest.raises(CorruptFile) as error:
        read_tune_result(path)
    assert words in error.value.message and str(path) in error.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000, '{"schema": "kbench.tune/1", "model": NaN}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.tune.json"
    path.write_text(text)
    with pytest.raises(CorruptFile):
        read_tune_result(path)


def test_a_missing_file_is_told_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kbench tune"):
        read_tune_result(tmp_path / "none.tune.json")
    with pytest.raises(UserError, match=r"none\.tune\.json"):
        read_tune_result(tmp_path / "none.yaml")
