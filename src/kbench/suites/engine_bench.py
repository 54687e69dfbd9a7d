"""Measures engine cases, each in a process of its own, and stores records whatever happens.

A case that ran is four records with the same parameters: ``load`` (until the session is there), ``first_run`` (the
first prompt and token of the process), ``prefill`` (each prompt until its logits: time to first token) and ``decode``
(each step between two tokens). One that did not is a single record, ``engine``, with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kbench.core import CorruptFile
from kbench.measure import host, median, quantile, quantile_interval, samples_needed
from kbench.model import stored_bytes
from kbench.results import ListOf, MapOf, Maybe, Number, Object, Record, Store, Text, check_shape, current_commit

from .engine_case import EngineCase
from .runner import Progress

LOAD, FIRST_RUN, PREFILL, DECODE, FAILED = "load", "first_run", "prefill", "decode", "engine"
# Of one case: the largest models take minutes to load from a slow disk.
CASE_SECONDS = 3600.0
PERCENTILES = (50, 95, 99)
_QUOTED_LINES = 6
# What a worker says of itself, as a record's status; anything else that it raises is no fault of the case's.
_STATUS = {"wrong": "wrong", "crashed": "crashed", "timeout": "timeout"}

# What a record says of its engine, as far as others read it: a stored one is anybody's.
_MAYBE = Maybe(Number())
_PERCENTILE = Object(
    {"seconds": _MAYBE, "samples": Number()}, {"low": Number(), "high": Number(), "samples_needed": Number()}
)
_SHAPE = Object(
    {
        "model_bytes": Number(), "rules_crc": Number(), "repetitions": Number(1), "peak_rss_bytes": Number(),
        "peak_vram_bytes": _MAYBE, "realised": MapOf(MapOf(Number())),
        "replaced": ListOf(Text()),
    },
    {
        "first_prefill_seconds": Number(), "tokens_per_s": Number(), "flops_per_s": Number(), "bytes_per_s": Number(),
        "share_of_roof": _MAYBE, "percentiles": MapOf(_PERCENTILE), "quant": Text(),
    },
)  # fmt: skip

# Runs a case and answers as engine_worker does.
Run = Callable[[EngineCase], Mapping[str, Any]]


def run_engine_cases(
    cases: Iterable[EngineCase],
    store: Store | None,
    *,
    progress: Progress | None = None,
    fresh: bool = True,
    suite: str = "local",
    run: Run | None = None,
) -> list[Record]:
    """The records of every case, in the order of ``cases``; never raises for what a case does.

    A case that this commit has measured on this host with the same model and rules is not measured again.

    Args:
        store: where records go, as soon as a case is done; None keeps them in memory.
        fresh: False measures again what has records.
        suite: names the file that records go to.
        run: runs one case; by default a process of its own.
    """
    wanted = list(cases)
    known = _known(wanted, store) if store is not None and fresh else {}
    found: list[Record] = []
    for done, case in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted), case.key)
        kept = known.get(case.key)
        if kept is None:
            kept = _records(case, (run or in_a_process)(case))
            if store is not None:
                store.append(kept, suite=suite)
        found += kept
    if progress is not None and wanted:
        progress(len(wanted), len(wanted), "")
    return found


def in_a_process(case: EngineCase, seconds: float = CASE_SECONDS) -> Mapping[str, Any]:
    """What ``engine_worker`` answers; ``failed`` where it dies or is silent for ``seconds``."""
    command = [sys.executable, "-m", "kbench.suites.engine_worker"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = worker.communicate(json.dumps(dataclasses.asdict(case)), timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": "timeout", "found": f"no answer after {seconds:g} s"}
    finally:
        worker.kill()  # an interrupted run leaves nobody behind
        worker.wait()
    for line in reversed(out.splitlines()):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    code = worker.returncode
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = " (killed: out of memory?)" if code == -signal.SIGKILL else ""
    tail = " | ".join(errors.strip().splitlines()[-_QUOTED_LINES:])
    return {"failed": "crashed", "found": f"its process ended with {ended}{memory} {tail}".strip()}


def _records(case: EngineCase, said: Mapping[str, Any]) -> list[Record]:
    about = _identity(case)

    def made(op: str, samples: Sequence[float] = (), **more: Any) -> Record:
        status, reason = more.pop("status", "ok"), more.pop("reason", "")
        return Record.make(
            (op, case.params), "kbench", threads=case.threads, result=samples, status=status, reason=reason,
            extra={"engine": {**about, **more}},
        )  # fmt: skip

    if "failed" in said:
        status: Any = _STATUS.get(said["failed"], "unsupported")
        more = {"realised": said["realised"]} if "realised" in said else {}
        return [made(FAILED, status=status, reason=str(said["found"]), **more)]
    about |= {
        name: said[name]
        for name in (
            "peak_rss_bytes",
            "peak_vram_bytes",
            "roof",
            "realised",
            "replaced",
            "threads",
            "chunk",
            "report",
            "quant",
        )
    }
    prompts = case.prompt * case.batch
    records = [
        made(LOAD, [said["load_seconds"]]),
        made(FIRST_RUN, [said["first_run_seconds"]], first_prefill_seconds=said["first_prefill_seconds"]),
        made(PREFILL, said["prefill_seconds"], **_prefill(said, prompts)),
    ]
    if said["decode_seconds"]:
        records.append(made(DECODE, said["decode_seconds"], **_decode(said, case.batch)))
    return records


def _prefill(said: Mapping[str, Any], n_tokens: int) -> dict[str, Any]:
    seconds = median(said["prefill_seconds"])
    flops, roof = said["prefill_flops"] / seconds, said["roof"]["int8_ops_per_s"]
    return {
        "tokens_per_s": n_tokens / seconds,
        "flops_per_s": flops,
        "share_of_roof": flops / roof if roof else None,
        "traffic": said["traffic"],
    }


def _decode(said: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The mean step gives tokens/s, the median step bytes/s: a few slow steps are the user's time, not the kernels'."""
    samples = said["decode_seconds"]
    rate, roof = said["decode_bytes"] / median(samples), said["roof"]["bytes_per_s"]
    return {
        "tokens_per_s": batch * len(samples) / sum(samples),
        "bytes_per_step": said["decode_bytes"],
        "bytes_per_s": rate,
        "share_of_roof": rate / roof if roof else None,
        "percentiles": {f"p{percent}": _percentile(samples, percent / 100) for percent in PERCENTILES},
    }


def _percentile(samples: Sequence[float], fraction: float) -> dict[str, Any]:
    """The quantile with its interval; with too few samples none, and how many it takes."""
    interval = quantile_interval(samples, fraction)
    if interval is None:
        return {"seconds": None, "samples": len(samples), "samples_needed": samples_needed(fraction)}
    return {
        "seconds": quantile(samples, fraction), "low": interval.low, "high": interval.high,
        "confidence": interval.confidence, "samples": len(samples),
    }  # fmt: skip


def _identity(case: EngineCase) -> dict[str, Any]:
    """What else decides whether a record is of this case: the files' contents, as far as that is quickly told."""
    return {
        "model_bytes": stored_bytes(Path(case.model)),
        "rules_crc": _crc(case.rules),
        "repetitions": case.repetitions,
    }


def _crc(path: str) -> int:
    if path:
        with contextlib.suppress(OSError):
            return zlib.crc32(Path(path).read_bytes())
    return 0


def _known(cases: Sequence[EngineCase], store: Store) -> dict[str, list[Record]]:
    """Records that stand for cases, by the case's key: the newest of each kind."""
    by_params = {(tuple(case.params.items()), case.threads): case for case in cases}
    found: dict[str, dict[str, Record]] = {}
    for record in store.find(host_id=host().host_id, status="ok", commit=current_commit(), implementation="kbench"):
        case = by_params.get((tuple(record.problem.items()), record.threads or 0))
        about = record.extra.get("engine")
        if case is None or record.op not in (LOAD, FIRST_RUN, PREFILL, DECODE) or record.median is None:
            continue
        try:
            check_shape(about, _SHAPE, record.key, "engine")
        except CorruptFile:
            continue  # measured again
        assert about is not None
        if all(about.get(name) == value for name, value in _identity(case).items()):
            found.setdefault(case.key, {})[record.op] = record
    whole = {case.key: {LOAD, FIRST_RUN, PREFILL, *([DECODE] if case.generate else [])} for case in cases}
    return {
        key: [kept[op] for op in (LOAD, FIRST_RUN, PREFILL, DECODE) if op in kept]
        for key, kept in found.items()
        if set(kept) >= whole[key]
    }
