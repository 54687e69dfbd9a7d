"""The JSON array and the JSON lines that llama.cpp's `llama-bench -o json` and `-o jsonl` write."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from kbench.core import CorruptFile

from .foreign import bounded, commit_name, foreign_host_id, utc
from .record import MAX_THREADS, Record, case_key
from .shape import ListOf, Number, Object, Text, check_shape

OP = "llama_bench"

_WANTED = "what `llama-bench -o json` writes"
_MOST_SAMPLES = 100_000
_RESULT = Object(
    {"model_filename": Text(), "n_prompt": Number(), "n_gen": Number(), "n_threads": Number(1), "test_time": Text()},
    {
        "build_commit": Text(), "build_number": Number(), "cpu_info": Text(), "gpu_info": Text(), "backends": Text(),
        "model_type": Text(), "n_depth": Number(), "avg_ts": Number(), "stddev_ts": Number(),
        "samples_ts": ListOf(Number(), _MOST_SAMPLES),
    },
)  # fmt: skip
# Settings that make another case, with the values that stand for "as it comes": those are left out of keys, so that
# a default's new spelling is no new case.
_SETTINGS: dict[str, tuple[object, ...]] = {
    "n_batch": (2048,),
    "n_ubatch": (512,),
    "type_k": ("f16",),
    "type_v": ("f16",),
    "n_gpu_layers": (-1, 99),
    "n_cpu_moe": (0,),
    "split_mode": ("layer",),
    "flash_attn": (-1, 0),
    "no_kv_offload": (0,),
    "devices": ("auto",),
    "tensor_split": ("0.00",),
    "tensor_buft_overrides": ("none",),
    "cpu_mask": ("0x0",),
    "embeddings": (0,),
    "repack": (1,),
    "moe_cache": ("auto",),
}


def llama_bench_records(results: Sequence[Any], where: str) -> list[Record]:
    """One record for each result.

    Raises:
        CorruptFile: a field is not what llama-bench writes; the message has its path.
    """
    return [_record(one, where, f"[{index}]" if len(results) > 1 else "") for index, one in enumerate(results)]


def _record(one: Any, where: str, path: str) -> Record:
    check_shape(one, _RESULT, where, path, _WANTED)
    # The file's name, not where it lay: the same model in another folder is the same case.
    model = one["model_filename"].replace("\\", "/").rpartition("/")[2] or "unnamed"
    problem: dict[str, int | float | str] = {"model": bounded(model)}
    for name in ("n_prompt", "n_gen", "n_depth"):
        problem[name] = _whole(one.get(name, 0), where, f"{path}.{name}".lstrip("."))
    for name, usual in _SETTINGS.items():
        if name in one and one[name] not in usual:
            problem[name] = _scalar(one[name], where, f"{path}.{name}".lstrip("."))
    samples = tuple(float(value) for value in one.get("samples_ts", ()))
    if not samples and "avg_ts" not in one:
        raise CorruptFile(f"{path}.samples_ts is missing".lstrip("."), where=where, accepted=_WANTED)
    threads = _whole(one["n_threads"], where, f"{path}.n_threads".lstrip("."))
    if threads > MAX_THREADS:
        raise CorruptFile(f"{path}.n_threads is {threads:g}".lstrip("."), where=where, accepted=f"1 to {MAX_THREADS}")
    machine = {name: bounded(one.get(name, "").strip()) for name in ("cpu_info", "gpu_info", "backends")}
    return Record(
        key=case_key(OP, {**problem, "threads": threads}),
        op=OP,
        implementation="llama.cpp",
        problem=problem,
        threads=threads,
        device="cpu" if not machine["gpu_info"] else machine["backends"] or "gpu",
        unit="tokens/s",
        direction="higher",
        samples=samples,
        median=statistics.median(samples) if samples else float(one["avg_ts"]),
        host_id=foreign_host_id(machine),
        commit=commit_name(one.get("build_commit", "")),
        created=utc(one["test_time"], where, f"{path}.test_time".lstrip(".")),
        extra={
            "imported": {
                "tool": "llama-bench",
                "version": str(one.get("build_number", "")),
                "machine": machine,
                "model_type": bounded(one.get("model_type", "")),
            }
        },
    )


def _whole(value: float, where: str, path: str) -> int:
    if value != int(value):
        raise CorruptFile(f"{path} is {value}", where=where, accepted="a whole number")
    return int(value)


def _scalar(value: Any, where: str, path: str) -> int | float | str:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, (int, float)) and abs(value) < 1e30 and not math.isnan(value):
        return value
    raise CorruptFile(f"{path} is a JSON {type(value).__name__}", where=where, accepted="a number or a text")
