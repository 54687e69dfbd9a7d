"""Histories of every verdict, judged as the verb does."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from kbench.results import Mark, Record, histories, judged_histories

COMMITS = [hashlib.sha1(str(number).encode()).hexdigest() for number in range(120)]


def records(
    key: str, ratios: dict[int, float], n: int = 120, unit: str = "seconds", noise: float = 0.01
) -> list[Record]:
    rng = np.random.default_rng(len(key))
    found = []
    for i in range(n):
        level = 1e-3 if unit == "seconds" else 200.0
        for at, ratio in ratios.items():
            level *= ratio if i >= at else 1.0
        for run in range(2 if i % 3 == 0 else 1):
            value = float(level * np.exp(noise * rng.normal()))
            found.append(
                Record(key, key.partition("(")[0], "cpu.avx2", threads=2, samples=(value,), median=value,
                       unit=unit, direction="lower" if unit == "seconds" else "higher", host_id="922420722ec9",
                       commit=COMMITS[i], created=f"2026-{1 + i // 28:02}-{1 + i % 28:02}T0{run}:00:00+00:00")
            )  # fmt: skip
    return found


def history_fields() -> dict[str, Any]:
    every = [
        *records("linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)", {80: 1.12}),
        *records("moe_experts(experts=32,top_k=6,n=704,k=1024,tokens=1,threads=2)", {30: 1.25, 60: 0.8, 100: 1.05}),
        *records("decode(model=small-Q4_K_M.gguf,context=512)", {70: 1.3}, unit="tokens/s", noise=0.02),
        *records("prefill(model=small-Q4_K_M.gguf,prompt=512)", {90: 0.9}, unit="tokens/s"),
        *records("attention(heads=16,context=2048)", {20: 1.1, 40: 1 / 1.1, 60: 1.1, 80: 1 / 1.1, 100: 1.1}),
        *records("rms_norm(d=4096)", {}),
        *records("rope(heads=16)", {50: 1.2}),
        *records("silu_mul(n=1408)", {}, n=7),
    ]
    marks = [Mark("rope*", COMMITS[50], "accepted", "checks its bounds now")]
    fields = judged_histories(histories(every, COMMITS), marks, COMMITS)
    return {"branch": "main", "created": "2026-11-30T12:00:00+00:00", "kbench_version": "0.1.0", **fields}
