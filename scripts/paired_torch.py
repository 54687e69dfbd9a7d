"""Times kbench's matrix products against torch's on this CPU, in pairs.

    python scripts/paired_torch.py --pairs 10

``linear`` of the shapes that DeepSeek-V2 and common dense models have, at 1 token (bytes decide) and at 512
(arithmetic does). kbench multiplies from Q4_K and Q8_0; torch with a bfloat16 and a float32 ``linear``, and with its
own int4 kernel (groups of 128, bfloat16 activations: the faster of those that it takes). Weights are cold: every side
goes round copies that exceed the last-level cache. Each side is a process of its own, so that neither thread pool
disturbs the other; they take turns (``kbench.measure.Turns``). Rates are multiply-adds counted as two operations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from pairing import Comparison, report

from kbench.measure import Rotation, Side, Turn, Turns, host, rotation_count, serve

# (n, k, tokens)
CASES = [
    (n, k, tokens) for tokens in (1, 512) for n, k in ((16384, 5120), (1536, 5120), (4096, 4096))
]  # fmt: skip
OURS = {"Q4_K": ("Q4_K", {}), "Q4_K:planes=1": ("Q4_K", {"activation_planes": 1}), "Q8_0": ("Q8_0", {})}
THEIRS = ("bf16", "f32", "int4")
GROUP = 128

# Of one turn: long against a scheduler's time slice; at least one call.
TURN_SECONDS = 0.1

Step = Callable[[], object]


def our_steps(variant: str, n: int, k: int, tokens: int, threads: int) -> Iterator[tuple[Step, int]]:
    """Endless copies of the product; with each, its bytes."""
    from kbench.core import CPU, OpCall, Problem, Value
    from kbench.kernels import StepState, best, implementation, random_weight

    rng = np.random.default_rng(0)
    quant, block = OURS[variant]
    problem = Problem.make("linear", quant=quant, n=n, k=k, tokens=tokens)
    native: Any = implementation(best(problem, CPU))
    call = OpCall("linear", problem, native.name, CPU, "x", ("x",), (Value("y", n),), ("w",), {}, threads, block)
    x, state = rng.standard_normal((tokens, k), dtype=np.float32), StepState(np.zeros(tokens, np.int32))
    while True:
        prepared = native.prepare(problem, [random_weight("w", quant, (k, n), rng)])
        step = native.recorded(call, prepared, state, threads)
        step.write([x], state)
        yield step.step, prepared.n_bytes


def torch_steps(variant: str, n: int, k: int, tokens: int, threads: int) -> Iterator[tuple[Step, int]]:
    import torch

    torch.set_num_threads(threads)
    dtype = torch.float32 if variant == "f32" else torch.bfloat16
    x = torch.randn(tokens, k, dtype=torch.float32).to(dtype)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    while True:
        if variant == "int4":
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
                torch.randint(0, 16, (n, k), dtype=torch.int32), 2
            )
            scales = torch.rand(k // GROUP, n, 2).to(dtype)
            yield (lambda w=packed, s=scales: multiply(x, w, GROUP, s)), n * k // 2 + scales.nbytes
        else:
            weight = torch.randn(n, k).to(dtype)
            yield (lambda w=weight: torch.nn.functional.linear(x, w)), weight.nbytes


def turns(side: str, threads: int) -> dict[str, Turn]:
    make = our_steps if side == "kbench" else torch_steps
    kept: dict[str, tuple[list[int], Rotation[Step]]] = {}

    def turn_of(variant: str) -> Turn:
        def turn(request: Mapping[str, Any]) -> list[float]:
            case = request["case"]
            if variant not in kept or kept[variant][0] != case:
                kept.pop(variant, None)
                kept[variant] = (case, rotation(make(variant, *case, threads)))
            steps, calls = kept[variant][1], 0
            start = time.perf_counter()
            while not calls or time.perf_counter() - start < TURN_SECONDS:
                steps.next()()
                calls += 1
            return [(time.perf_counter() - start) / calls]

        return turn

    return {variant: turn_of(variant) for variant in (OURS if side == "kbench" else THEIRS)}


def rotation(steps: Iterator[tuple[Step, int]]) -> Rotation[Step]:
    first, n_bytes = next(steps)
    count = rotation_count(n_bytes, host().llc_bytes)
    return Rotation([first, *(next(steps)[0] for _ in range(count - 1))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--case", action="append", metavar="N,K,TOKENS", help="instead of the shapes above")
    parser.add_argument("--store", metavar="DIR", help="append records to this results folder")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        import torch

        about = {"package": f"torch {torch.__version__}", "isa": torch.backends.cpu.get_cpu_capability()}
        serve(turns(options.serve, options.threads), {} if options.serve == "kbench" else about)
        return
    cases = [tuple(map(int, case.split(","))) for case in options.case] if options.case else CASES
    for n, k, tokens in cases:
        command = [__file__, "--threads", str(options.threads), "--serve"]
        sides = [Side("kbench", [*command, "kbench"]), Side("torch", [*command, "torch"])]
        request = {"case": [n, k, tokens]}
        with Turns(sides, request, at_once=True) as pairs:
            answers = pairs.take(options.pairs, request)
        gflop = 2 * n * k * tokens / 1e9
        rates = {key: tuple(gflop / seconds for (seconds,) in values) for key, values in answers.items()}
        print(f"linear n={n} k={k}, {tokens} tokens", flush=True)
        report(
            [
                Comparison(
                    "linear", {"n": n, "k": k, "tokens": tokens}, f"kbench:{ours}", f"torch:{theirs}",
                    rates["kbench", ours], rates["torch", theirs], "GFLOP/s", options.threads, {"peer": sides[1].about},
                )
                for ours in OURS
                for theirs in THEIRS
                if (ours, theirs) != ("Q8_0", "int4")  # twice the bytes, another precision
            ],
            options.store,
        )  # fmt: skip


if __name__ == "__main__":
    main()
