"""Files of pytest-benchmark (two that it wrote) and of llama-bench (by its documented fields) as records."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kbench.core import CorruptFile, KbenchError, UserError
from kbench.results import Record, Store, histories, import_records, read_foreign

DATA = Path(__file__).parent / "data"
RAW, SAVED = DATA / "pytest_benchmark_json.json", DATA / "pytest_benchmark_saved.json"

LLAMA: dict[str, Any] = {
    "build_commit": "8cf427ff", "build_number": 5163, "cpu_info": "A CPU", "gpu_info": "", "backends": "CPU",
    "model_filename": "models/small-Q4_K_M.gguf", "model_type": "qwen2 7B Q4_K - Medium", "model_size": 4677120000,
    "model_n_params": 7615616512, "n_batch": 2048, "n_ubatch": 512, "n_threads": 8, "cpu_mask": "0x0",
    "cpu_strict": False, "poll": 50, "type_k": "f16", "type_v": "q8_0", "n_gpu_layers": 99, "split_mode": "layer",
    "main_gpu": 0, "no_kv_offload": False, "flash_attn": True, "tensor_split": "0.00", "use_mmap": True,
    "embeddings": False, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "test_time": "2025-04-24T11:58:50Z",
    "avg_ns": 72135640, "stddev_ns": 1453752, "avg_ts": 7100.0, "stddev_ts": 140.3,
    "samples_ns": [74601900, 71632900, 71745200], "samples_ts": [6863.1, 7147.55, 7136.37],
}  # fmt: skip


def write(folder: Path, data: Any) -> Path:
    path = folder / "results.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_what_pytest_benchmark_wrote_with_raw_data() -> None:
    said = json.loads(RAW.read_text())
    records = read_foreign(RAW)
    assert len(records) == len(said["benchmarks"]) == 2
    for record, one in zip(records, said["benchmarks"], strict=True):
        assert record.key == f"pytest_benchmark(test={one['fullname']})" and record.implementation == "pytest"
        assert record.samples == tuple(one["stats"]["data"]) and record.unit == "seconds"
        assert record.median == pytest.approx(one["stats"]["median"], rel=1e-9)
        assert record.host_id.startswith("import-") and record.commit != ""


def test_what_pytest_benchmark_saved_without() -> None:
    said = json.loads(SAVED.read_text())
    for record, one in zip(read_foreign(SAVED), said["benchmarks"], strict=True):
        assert record.samples == () and record.median == one["stats"]["median"]
    # The same machine, whatever the run.
    assert {record.host_id for record in read_foreign(SAVED)} == {record.host_id for record in read_foreign(RAW)}


@pytest.mark.parametrize("lines", [False, True])
def test_what_llama_bench_writes(tmp_path: Path, lines: bool) -> None:
    generated = {**LLAMA, "n_prompt": 0, "n_gen": 128, "samples_ts": [119.0, 120.2]}
    both = [LLAMA, generated]
    records = read_foreign(write(tmp_path, "\n".join(map(json.dumps, both)) + "\n" if lines else both))
    assert [record.key for record in records] == [
        "llama_bench(model=small-Q4_K_M.gguf,n_prompt=512,n_gen=0,n_depth=0,type_v=q8_0,flash_attn=1,threads=8)",
        "llama_bench(model=small-Q4_K_M.gguf,n_prompt=0,n_gen=128,n_depth=0,type_v=q8_0,flash_attn=1,threads=8)",
    ]
    first = records[0]
    assert (first.unit, first.direction, first.median, first.threads) == ("tokens/s", "higher", 7136.37, 8)
    assert (first.commit, first.created) == ("8cf427ff", "2025-04-24T11:58:50+00:00")


def test_an_older_or_newer_llama_bench(tmp_path: Path) -> None:
    old = {name: value for name, value in LLAMA.items() if name not in ("n_depth", "samples_ts", "build_commit")}
    (record,) = read_foreign(write(tmp_path, [old]))
    assert record.median == 7100.0 and record.samples == () and record.commit == "unversioned"
    (newer,) = read_foreign(write(tmp_path, [{**LLAMA, "flash_attn": -1, "type_v": "f16", "unheard": {"of": [1]}}]))
    assert newer.key == "llama_bench(model=small-Q4_K_M.gguf,n_prompt=512,n_gen=0,n_depth=0,threads=8)"


def test_records_survive_the_store_and_come_in_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    records = [*read_foreign(RAW), *read_foreign(write(tmp_path, [LLAMA]))]
    assert import_records(records, store) == 3 and import_records(records, store) == 0
    assert sorted(store.read(), key=str) == sorted(records, key=str)
    assert all(isinstance(record, Record) for record in Store(tmp_path / "store").read())


def test_the_host_can_be_named() -> None:
    assert {record.host_id for record in read_foreign(RAW, "123456789abc")} == {"123456789abc"}


def broken(change: str) -> Any:
    data = copy.deepcopy(json.loads(RAW.read_text()))
    exec(change, {"data": data, "stats": data["benchmarks"][1]["stats"]})
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("del data['benchmarks'][1]['stats']", "benchmarks[1].stats is missing"),
        ("stats['median'] = 'x'", "benchmarks[1].stats.median is"),
        ("stats['median'] = -1", "benchmarks[1].stats.median is -1"),
        ("stats['median'] = float('nan')", "benchmarks[1].stats.median is"),
        ("stats['data'][0] = None", "benchmarks[1].stats.data[0] is null"),
        ("stats['data'][0] = 10 ** 400", "benchmarks[1].stats.data[0] is"),
        ("data['benchmarks'] = {}", "benchmarks is a JSON dict"),
        ("data['benchmarks'] = []", "no results"),
        ("data['datetime'] = 'yesterday'", "datetime is"),
        ("data['machine_info'] = 3", "machine_info is 3"),
        ("data['commit_info']['id'] = ['x']", "commit_info.id is"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(CorruptFile) as found:
        read_foreign(write(tmp_path, broken(change)))
    assert words in found.value.message and "results.json" in found.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{", "results.json:1:2"),
        ('[\n{"n_prompt": }]', "results.json:2:14"),
        ("[]", "no results"),
        ("3", "JSON of no known tool"),
        ("[" * 100_000, "no JSON"),
        ('[{"n_prompt": 1}]', "model_filename is missing"),
        ("[3]", "the file is 3"),
        (json.dumps(LLAMA) + "\n{\n", "results.json:2"),
        (json.dumps(LLAMA) + "\n" + json.dumps({**LLAMA, "n_gen": "x"}), "results.json:2: n_gen"),
        (json.dumps([LLAMA, {**LLAMA, "n_gen": 0.5}]), "[1].n_gen is 0.5"),
        (json.dumps([{**LLAMA, "flash_attn": [1]}]), "flash_attn is a JSON list"),
        (json.dumps([{**LLAMA, "n_threads": 0}]), "n_threads is 0"),
        (json.dumps([{**LLAMA, "test_time": "2025-99-99"}]), "test_time is"),
        ("1" * 10_000, "no JSON"),
    ],
)
def test_what_is_no_file_of_a_known_tool(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(KbenchError) as found:
        read_foreign(write(tmp_path, text))
    assert words in found.value.message


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_foreign(tmp_path / "none.json")


def test_names_of_any_length_stay_apart(tmp_path: Path) -> None:
    data = json.loads(RAW.read_text())
    for number, one in enumerate(data["benchmarks"]):
        one["fullname"] = "x" * 100_000 + str(number)
    first, second = read_foreign(write(tmp_path, data))
    assert first.key != second.key and len(first.key) < 500


def test_more_threads_than_anybody_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"n_threads is 1e\+30"):
        read_foreign(write(tmp_path, [{**LLAMA, "n_threads": 1e30}]))


def test_runs_of_no_known_commit_are_points_by_their_time(tmp_path: Path) -> None:
    # What llama.cpp says of a build whose repository it did not find.
    runs = [{**LLAMA, "build_commit": "unknown", "test_time": f"2026-01-{day:02}T00:00:00Z"} for day in (1, 2, 3)]
    (series,) = histories(read_foreign(write(tmp_path, runs)), None).series
    assert [point.created[:10] for point in series.points] == ["2026-01-01", "2026-01-02", "2026-01-03"]
