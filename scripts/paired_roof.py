"""How near kbench comes to what this machine can do at best: the read bandwidth in decode, the arithmetic in prefill.

    python scripts/paired_roof.py model.gguf --pairs 12
    python scripts/paired_roof.py --pairs 12

With files: ``--generate`` tokens are decoded between two runs of the bandwidth probe, both on the same threads; the
bytes of packed weights that a token reads, times tokens/s, over what the probes read a second, is the share of the
roof. Both are bytes over time, whole: the best pass of a probe is what an undisturbed memory gives, and on a machine
that is shared no stretch of work gets that.
Counted are bytes in memory: once every matrix, of the routed experts those chosen, one row of the embedding; neither
the cache nor activations. Without files: matrix products of 512 tokens between two runs of the peak probe, for the
kinds of multiplication that the instruction set has. The share of each pair is stored as its ratio.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paired_torch import OURS, our_steps, rotation
from pairing import Comparison, report

from kbench.engine import Session, kbench_sessions
from kbench.kernels import Pool, arithmetic_peak, isas, read_rates
from kbench.model import stored_bytes

PROBE_SECONDS = 0.15
SHAPES = ((1536, 5120), (16384, 5120), (4096, 4096))
TOKENS = 512
# Of a product between two probes.
CALLS = 2


def touched_bytes(session: Session) -> float:
    """Bytes of packed weights that a decode step reads."""
    total = 0.0
    for call in session.decode_calls:
        n_bytes, problem = float(session.weights.of(call).n_bytes), call.problem
        if call.op == "embedding":
            n_bytes /= problem.integer("vocab")
        elif call.op == "moe_experts":
            n_bytes *= problem.integer("top_k") / problem.integer("experts")
        total += n_bytes
    return total


def against_probes(
    work: Callable[[], float], probes: Sequence[Callable[[], float]], n_pairs: int
) -> tuple[list[float], list[list[float]]]:
    """Rates of ``work`` and, for each probe, the means of what it said before and after."""
    work()
    rates: list[float] = []
    roofs: list[list[float]] = [[] for _ in probes]
    before = [probe() for probe in probes]
    for _ in range(n_pairs):
        rates.append(work())
        after = [probe() for probe in probes]
        for roof, first, second in zip(roofs, before, after, strict=True):
            roof.append((first + second) / 2)
        before = after
    return rates, roofs


def decode(model: Path, planes: int, options: argparse.Namespace) -> Comparison:
    (session,) = kbench_sessions(model, options.generate + 16, options.threads, [planes]).values()
    pool = Pool(options.threads)
    n_bytes = touched_bytes(session)
    rng = random.Random(0)
    tokens = [rng.randrange(1000) for _ in range(options.generate)]

    def work() -> float:
        session.reset()
        session.prefill(tokens[:8])
        start = time.perf_counter()
        for token in tokens:
            session.decode(token)
        return n_bytes * len(tokens) / (time.perf_counter() - start) / 1e9

    def probe() -> float:
        return statistics.harmonic_mean(read_rates(pool, 256 << 20, PROBE_SECONDS)) / 1e9  # bytes over time

    rates, (roofs,) = against_probes(work, [probe], options.pairs)
    extra = {"bytes_per_token": round(n_bytes), "file_bytes": stored_bytes(model)}
    return Comparison(
        "roof", {"model": model.stem, "n": options.generate}, f"kbench:planes={planes}", "read_rates",
        tuple(rates), tuple(roofs), "GB/s", options.threads, extra,
    )  # fmt: skip


def prefill(n: int, k: int, variant: str, options: argparse.Namespace) -> list[Comparison]:
    steps = rotation(our_steps(variant, n, k, TOKENS, options.threads))
    isa = [name for name, missing in isas() if not missing][-1]
    pool = Pool(options.threads)

    def peak(kind: str) -> float:
        try:
            return arithmetic_peak(pool, isa, kind, PROBE_SECONDS) / 1e9
        except (ValueError, RuntimeError):
            return 0.0  # this instruction set has none

    def work() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            steps.next()()
        return CALLS * 2 * n * k * TOKENS / (time.perf_counter() - start) / 1e9

    kinds = [kind for kind in ("int8", "bf16", "f32") if peak(kind)]
    rates, roofs = against_probes(work, [functools.partial(peak, kind) for kind in kinds], options.pairs)
    return [
        Comparison(
            "roof", {"n": n, "k": k, "tokens": TOKENS}, f"kbench:{variant}", f"peak_{kind}", tuple(rates), tuple(roof),
            "Gop/s", options.threads,
        )
        for kind, roof in zip(kinds, roofs, strict=True)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="GGUF files; matrix products without any")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--planes", type=int, action="append", choices=[1, 2], help="activation planes [2]")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--store", metavar="DIR", help="append records to this results folder")
    options = parser.parse_args()
    for model in options.models:
        print(Path(model).stem)
        for planes in options.planes or [2]:
            report([decode(Path(model), planes, options)], options.store)
    if not options.models:
        for n, k in SHAPES:
            print(f"linear n={n} k={k}, {TOKENS} tokens")
            for variant in OURS:
                report(prefill(n, k, variant, options), options.store)


if __name__ == "__main__":
    main()
