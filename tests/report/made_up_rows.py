"""Rows of every kind, with names that every format must be able to hold."""

from __future__ import annotations

from kbench.report import Sheet
from kbench.results import VerdictRow

NAUGHTY = 'a|b<c>&"d"\\e`f`\n@all *g* [h](i) =1+2 \x1b[31m\u202eé'


def row(case: str, verdict: str = "", **more: object) -> VerdictRow:
    fields: dict[str, object] = {"implementation": "cpu.avx2", "margin": 0.03, "threads": 2}
    if verdict:
        ratio = {"REGRESSED": 1.12, "IMPROVED": 0.8, "SAME": 1.001, "INCONCLUSIVE": 1.02}[verdict]
        fields |= {
            "verdict": verdict, "ratio": ratio, "low": ratio * 0.99, "high": ratio * 1.01, "confidence": 0.98,
            "p": 1e-4, "n_pairs": 12, "n_confirmed_by": 12, "a_seconds": 0.001, "b_seconds": 0.001 * ratio,
        }  # fmt: skip
    return VerdictRow(case, "main", "HEAD", **{**fields, **more})  # type: ignore[arg-type]


def rows() -> list[VerdictRow]:
    samples = [0.00112 * (1 + 0.01 * (i % 4)) for i in range(12)]
    return [
        row("linear(n=1,tokens=1)", "SAME"),
        row("linear(n=2,tokens=1)", "REGRESSED",
            extra={"a_samples": [0.001] * 12, "b_samples": samples, "discarded": ["load 3.1"]}),
        row("linear(n=3,tokens=1)", "IMPROVED"),
        row("linear(n=4,tokens=1)", "INCONCLUSIVE", reason="the interval reaches across 3.0%"),
        row("decode(model=small)", "REGRESSED", tokens=16, a_seconds=0.1, b_seconds=0.112),
        row("linear(n=5,tokens=1)", status="wrong", reason="0.9 instead of 1"),
        row("linear(n=6,tokens=1)", status="disturbed", reason="steal time 12 %"),
        row("linear(n=7,tokens=1)", status="new"),
        row(NAUGHTY, "SAME", reason=NAUGHTY),
        row("linear(n=1,tokens=1)", "SAME", n_pairs=0, n_blocks=(5, 5)),
    ]  # fmt: skip


def sheet(of: list[VerdictRow] | None = None, change: bool = True) -> Sheet:
    return Sheet(
        "kbench track check", rows() if of is None else of, change, "922420722ec9", "3" * 40,
        "2026-11-30T12:00:00+00:00", ("steal time was seen",), "0.1.0",
    )  # fmt: skip
