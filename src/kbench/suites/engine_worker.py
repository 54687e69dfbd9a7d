"""Runs one engine case in a process of its own: ``python -m kbench.suites.engine_worker``, the case as JSON on stdin.

The last line of stdout is the answer: raw seconds, peaks of memory, where everything ran; or ``failed`` with why.
A process of its own, because its peak of memory is the case's alone, and because what dies takes nothing along.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kbench.core import AUTO, InvalidEnvironment, KbenchError, Phase, Placement, work
from kbench.engine import DEFAULT_CHUNK, Session, load_model
from kbench.kernels import native_probes
from kbench.measure import host, peak_resident_bytes
from kbench.model import ModelDescriptor, lower
from kbench.rules import load_rules

from .engine_case import TEXT, EngineCase
from .realised import fallbacks, realised, replaced
from .text import english

_TOKENS_SEED = 0
# Reading memory for so long says what it can give.
_ROOF_SECONDS, _ROOF_BYTES = 0.2, 256 << 20


def run_case(case: EngineCase) -> dict[str, Any]:
    """What one case came to.

    Raises:
        KbenchError: it cannot run here.
    """
    begin = time.perf_counter()
    default = Placement(generate_op=case.implementation, prefill_op=case.implementation)
    session = load_model(
        case.model,
        load_rules(case.rules) if case.rules else None,
        default=None if case.implementation == AUTO else default,
        context=case.context,
        kv=case.kv,
        sequences=case.batch,
        threads=case.threads,
        prefill_threads=case.prefill_threads or None,
        chunk=case.chunk or DEFAULT_CHUNK,
    )
    load_seconds = time.perf_counter() - begin
    wrong = fallbacks(session)
    if wrong:
        return {"failed": "wrong", "found": "; ".join(wrong[:3]), "realised": realised(session)}
    streams = [_tokens(case, session, number) for number in range(case.batch)]
    begin = time.perf_counter()
    first = _generation(session, case, streams, min(case.generate, 1))
    first_seconds = time.perf_counter() - begin
    prefill: list[float] = []
    decode: list[float] = []
    for _ in range(case.repetitions):
        prompt_seconds, step_seconds = _generation(session, case, streams, case.generate)
        prefill.append(prompt_seconds)
        decode += step_seconds
    peaks = {"peak_rss_bytes": peak_resident_bytes(), "peak_vram_bytes": _peak_vram_bytes()}
    return {
        "load_seconds": load_seconds,
        "first_run_seconds": first_seconds,
        "first_prefill_seconds": first[0],
        "prefill_seconds": prefill,
        "decode_seconds": decode,
        **peaks,
        **_work(session.descriptor, case),
        "roof": _roof(session),
        "realised": realised(session),
        "replaced": replaced(session),
        "threads": {"decode": session.threads, "prefill": session.prefill_threads},
        "chunk": session.chunk,
        "report": {
            name: getattr(session.report, name)
            for name in ("file_bytes", "weight_bytes", "kv_bytes", "workspace_bytes", "seconds")
        },
        "quant": session.descriptor.quant,
        "traffic": session.traffic.plain(),
    }


def _tokens(case: EngineCase, session: Session, number: int) -> list[int]:
    """The tokens of one sequence: as many as the case's context."""
    if case.tokens == TEXT:
        ids = session.tokenizer.encode(english())
        start = number * case.context  # another part of the text for each sequence; from its beginning where it ends
        return [ids[(start + i) % len(ids)] for i in range(case.context)]
    rng = random.Random(_TOKENS_SEED + number)
    return [rng.randrange(session.descriptor.vocab) for _ in range(case.context)]


def _generation(
    session: Session, case: EngineCase, streams: Sequence[Sequence[int]], generate: int
) -> tuple[float, list[float]]:
    """Seconds until all sequences have the logits of their prompts, and of each step of all of them after that.

    The tokens are known beforehand: choosing them is no part of a step, and every build does the same work.
    """
    session.reset()
    sequences = [0, *(session.new_sequence() for _ in streams[1:])]
    if case.depth:
        for sequence, ids in zip(sequences, streams, strict=True):
            session.prefill(ids[: case.depth], sequence)
    begin = time.perf_counter()
    end = case.depth + case.prompt
    for sequence, ids in zip(sequences, streams, strict=True):
        session.prefill(ids[case.depth : end], sequence)
    prompt_seconds = time.perf_counter() - begin
    steps: list[float] = []
    for position in range(end, end + generate):
        begin = time.perf_counter()
        if len(sequences) == 1:
            session.decode(streams[0][position])
        else:
            session.decode_batch([ids[position] for ids in streams], sequences)
        steps.append(time.perf_counter() - begin)
    return prompt_seconds, steps


def _work(descriptor: ModelDescriptor, case: EngineCase) -> dict[str, float]:
    """Bytes that one decode step has to read, at the middle of what is generated, and FLOPs of all prompts."""

    def total(phase: Phase, tokens: int, context: int, name: str) -> float:
        calls = lower(descriptor, {}, phase, tokens, context, kv=case.kv, resolve=lambda problem, device: "reference")
        return sum(float(getattr(work(call.problem), name)) for call in calls)

    middle = case.depth + case.prompt + max(1, case.generate // 2)
    weights = total(Phase.DECODE, case.batch, max(middle, case.batch), "weight_bytes")
    cached = total(Phase.DECODE, 1, middle, "cache_bytes") * case.batch
    flops = total(Phase.PREFILL, case.prompt, case.depth + case.prompt, "flops") * case.batch
    return {"decode_bytes": weights + cached, "prefill_flops": flops}


def _roof(session: Session) -> dict[str, float | None]:
    """What this machine gives to as many threads, right after the run: bytes/s read, and operations/s in int8."""
    machine = host()
    try:
        probes = native_probes(
            max(session.threads, session.prefill_threads),
            cpus=machine.pin_cpus,
            n_bytes=max(_ROOF_BYTES, 4 * machine.llc_bytes),
            seconds=_ROOF_SECONDS,
        )
    except InvalidEnvironment:
        return {"bytes_per_s": None, "int8_ops_per_s": None}
    return {
        "bytes_per_s": probes.read_bandwidth(session.threads).value,
        "int8_ops_per_s": probes.arithmetic_peak("int8", session.prefill_threads).value,
    }


def _peak_vram_bytes() -> int | None:
    """The most that torch had allocated on all GPUs together; None without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))


def case_of(said: Mapping[str, Any]) -> EngineCase:
    """The case that the other process wrote."""
    return EngineCase(**said)


def main() -> None:
    """Answers once."""
    case = case_of(json.load(sys.stdin))
    try:
        answer = run_case(case)
    except KbenchError as error:
        answer = {"failed": type(error).__name__, "found": error.message}
    except MemoryError:
        answer = {"failed": "crashed", "found": "out of memory"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
