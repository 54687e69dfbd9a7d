"""Times kbench's MoE layer against kt-kernel's on the same GGUF blocks, in pairs.

    pip install --no-deps kt-kernel
    python scripts/paired_moe.py --tokens 1 --experts 160
    python scripts/paired_moe.py --tokens 512 --experts 64

Each side lives in a process of its own, makes the same weights from the same seed (Q4_K gate and up, Q6_K down unless
`--quants` says otherwise), and is stopped while it is not its turn, so that threads which spin while they wait disturb
nobody. The sides take turns in the order ABBA. A turn is a round over the experts: calls of one token take the next
top_k of a shuffled deck, so that an expert comes again only when all others have been read and its weights come from
memory; a call of more tokens than that uses all experts anyway and is a turn by itself. The first turn of each side is
thrown away. Before any timing both sides' outputs are compared with the float64 result of the dequantised weights; a
side that is wrong ends the program.

kt-kernel runs as its own GGUF wrapper sets it up (`MOE`, bfloat16 in and out), driven through submit and sync. Its
submitting thread spins, so the number of worker threads that is best on a machine is not obvious: each of
`--peer-threads` is tried, and the pairs are run with the fastest.

Printed: seconds a call, GB/s of packed (kbench) and GGUF (kt-kernel) weights, GFLOP/s, and the median over pairs of the
ratio of seconds (kt-kernel / kbench) with the order-statistic interval that covers the true median with >= 95 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from pairing import Comparison, report

from kbench.core import CPU, CheckBroken, Problem
from kbench.kernels import StepState, WeightData, best, comparable, dequantize, example, example_weights
from kbench.measure import Side, Turns, refuse, serve

# Of the norm of the right output. Rounding activations to int8 with one scale for 256 of them, twice in a row, as
# kt-kernel does, leaves 2 %; a wrong scale, nibble or expert tens of percent.
MAX_ERROR = 0.05
CHECKED_TOKENS = 4


class Layer:
    """The problem, its weights and its inputs: the same options give the same in every process."""

    def __init__(self, options: argparse.Namespace) -> None:
        gate, up, down = options.quants.split(",")
        k, n = (int(v) for v in options.shape.split("x"))
        self.tokens, self.experts, self.top_k, self.n, self.k = options.tokens, options.experts, options.top_k, n, k
        self.problem: Problem = Problem.parse(
            f"moe_experts(experts={self.experts},top_k={self.top_k},n={n},k={k},quant_gate={gate},quant_up={up},"
            f"quant_down={down},tokens={self.tokens})"
        )
        rng = np.random.default_rng(0)
        self.weights: Sequence[WeightData] = example_weights(self.problem, rng)
        x = rng.standard_normal((self.tokens, k), dtype=np.float32)
        # bfloat16 is what kt-kernel takes: numbers that both can hold.
        self.x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        self.scores = rng.uniform(0.05, 1.0, (self.tokens, self.top_k)).astype(np.float32)
        used = self.tokens * self.top_k
        if used > self.experts:
            self.ids = [np.argsort(rng.random((self.tokens, self.experts)), axis=-1)[:, : self.top_k].astype(np.int32)]
        else:
            deck = rng.permutation(self.experts).astype(np.int32)[: self.experts // used * used]
            self.ids = [np.ascontiguousarray(part) for part in deck.reshape(-1, self.tokens, self.top_k)]

    def expert(self, index: int, expert: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        weight = self.weights[index]
        size = weight.raw.size // self.experts
        raw = weight.raw[expert * size : (expert + 1) * size]
        return dequantize(raw, weight.quant, weight.shape[0]).reshape(-1, weight.shape[0]).astype(np.float64)

    def error(self, y: np.ndarray[Any, Any]) -> float:
        """Of round 0's output, relative to its norm, on a few tokens."""
        worst = 0.0
        for t in np.unique(np.linspace(0, self.tokens - 1, min(self.tokens, CHECKED_TOKENS)).astype(int)):
            x, truth = self.x[t].astype(np.float64), np.zeros(self.k)
            for expert, score in zip(self.ids[0][t], self.scores[t], strict=True):
                gate, up = self.expert(0, expert) @ x, self.expert(1, expert) @ x
                truth += float(score) * (self.expert(2, expert) @ (gate / (1 + np.exp(-gate)) * up))
            worst = max(worst, float(np.linalg.norm(y[t] - truth) / np.linalg.norm(truth)))
        return worst


def make_calls(options: argparse.Namespace, layer: Layer) -> tuple[list[Any], int]:
    """Of every round a call with its inputs, so that a turn is nothing but steps; and the bytes of the weights."""
    if options.serve == "kt-kernel":
        name, block = "kt", {}
    else:
        name = options.implementation or best(layer.problem, CPU)
        block = {key: int(value) for key, value in (part.split("=") for part in options.block)}
    item: Any = comparable(name)
    case = example(layer.problem, np.random.default_rng(0), weights=layer.weights)
    state = StepState(np.zeros(layer.tokens, np.int32))
    prepared = item.prepare(layer.problem, layer.weights)
    # A recorded call is found again by the identity of what it records: one for each round.
    rounds = [dataclasses.replace(case.call, implementation=name, block=block) for _ in layer.ids]
    calls = [item.recorded(call, prepared, state, options.threads) for call in rounds]
    for call, ids in zip(calls, layer.ids, strict=True):
        call.write((layer.x, ids, layer.scores), state)
    return calls, prepared.n_bytes


def serve_side(options: argparse.Namespace) -> None:
    layer = Layer(options)
    calls, n_bytes = make_calls(options, layer)
    calls[0].step()
    error = layer.error(calls[0].read()[0])
    if not error <= MAX_ERROR:
        refuse(CheckBroken(f"its output is off by {error:.2%} of its norm", accepted=f"at most {MAX_ERROR:.0%}"))
        return

    def turn(_: Mapping[str, Any]) -> float:
        """Seconds a call."""
        start = time.perf_counter()
        for call in calls:
            call.step()
        return (time.perf_counter() - start) / len(calls)

    serve({"": turn}, {"error": error, "expert_bytes": n_bytes / layer.experts})


def side_of(name: str, threads: int) -> Side:
    return Side(name, [__file__, *sys.argv[1:], "--serve", name, "--threads", str(threads)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--experts", type=int, default=160)
    parser.add_argument("--top-k", type=int, default=6)
    parser.add_argument("--shape", default="5120x1536", help="hidden x expert width")
    parser.add_argument("--quants", default="Q4_K,Q4_K,Q6_K", help="of gate, up and down")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer-threads", default="1,2,3", help="worker threads of kt-kernel to try")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--implementation", help="default: the best that runs here")
    parser.add_argument("--block", action="append", default=[], help="kernel parameter name=value of kbench")
    parser.add_argument("--alone", action="store_true", help="kbench's side only")
    parser.add_argument("--store", metavar="DIR", help="append a record to this results folder")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_side(options)
        return

    flops = 6.0 * options.tokens * options.top_k * np.prod([int(v) for v in options.shape.split("x")])
    ours = side_of("kbench", options.threads)

    def describe(side: Side, seconds: Sequence[float], threads: int) -> str:
        middle = statistics.median(seconds)
        read = min(options.tokens * options.top_k, options.experts) * side.about["expert_bytes"] / middle / 1e9
        return (
            f"{side.name:9}  {middle * 1e3:9.2f} ms  {read:6.1f} GB/s  {flops / middle / 1e9:6.0f} GFLOP/s  "
            f"{threads} threads, off by {side.about['error']:.2%} of the output's norm"
        )

    if options.alone:
        with Turns([ours], {}, at_once=True) as turns:
            (alone,) = turns.take(2 * options.pairs, {}).values()
        print(describe(ours, alone, options.threads))
        return
    tried: dict[int, float] = {}
    for threads in (int(v) for v in options.peer_threads.split(",")):
        with Turns([side_of("kt-kernel", threads)], {}, at_once=True) as turns:
            (few,) = turns.take(3, {}).values()
        tried[threads] = statistics.median(few)
        print(f"kt-kernel, {threads} threads: {tried[threads] * 1e3:.2f} ms a call", flush=True)
    threads = min(tried, key=lambda count: tried[count])
    theirs = side_of("kt-kernel", threads)
    with Turns([ours, theirs], {}, at_once=True) as turns:
        seconds = list(turns.take(options.pairs, {}).values())
    print(describe(ours, seconds[0], options.threads))
    print(describe(theirs, seconds[1], threads))
    row = Comparison(
        "moe",
        {"shape": options.shape, "experts": options.experts, "quants": options.quants, "tokens": options.tokens},
        "".join(("kbench", *(f":{part}" for part in options.block))),
        "kt-kernel",
        *(tuple(flops / value / 1e9 for value in values) for values in seconds),
        "GFLOP/s",
        options.threads,
        {"peer": {"package": f"kt-kernel {metadata.version('kt-kernel')}", "threads": threads}},
    )
    report([row], options.store)


if __name__ == "__main__":
    main()
