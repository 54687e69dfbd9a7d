"""Times kbench against llama.cpp on one GGUF file, in pairs.

    python scripts/paired_engines.py model.gguf --against llama.cpp --threads 2 --pairs 12

Each side lives in a process of its own that loads the model once and then waits. The sides take turns in the order
ABBA, so that a slow stretch of the machine hits both. A turn is one prefill (pp) of `--prompt` tokens into an empty
cache and one decode (tg) of `--generate` tokens after a prompt of 8; tokens are seeded random ids, the same for both.
The first turn of each side is thrown away. Printed: median tokens/s of each side, and the median over pairs of the
ratio of tokens/s (kbench / peer) with the order-statistic interval that covers the true median with >= 95 %.

Peers: `llama.cpp` is the package llama-cpp-python, `ik_llama.cpp` the package ik-llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Turn = Callable[[list[int], list[int]], tuple[float, float]]


def kbench_side(model: str, threads: int, n_context: int) -> Turn:
    from kbench.engine import load_model

    session = load_model(Path(model), context=n_context, threads=threads)

    def turn(prompt: list[int], generated: list[int]) -> tuple[float, float]:
        session.reset()
        start = time.perf_counter()
        session.prefill(prompt)
        prefill = time.perf_counter() - start
        session.reset()
        session.prefill(generated[:8])
        start = time.perf_counter()
        for token in generated:
            session.decode(token)
        return prefill, time.perf_counter() - start

    return turn


def llama_cpp_side(model: str, threads: int, n_context: int) -> Turn:
    import ctypes

    import llama_cpp as api

    llama = api.Llama(model, n_ctx=n_context, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
                      verbose=False)  # fmt: skip

    def decode(tokens: list[int], position: int) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if api.llama_decode(llama.ctx, api.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        api.llama_synchronize(llama.ctx)

    return peer_turn(decode, lambda: api.llama_memory_clear(api.llama_get_memory(llama.ctx), True))


def ik_llama_cpp_side(model: str, threads: int, n_context: int) -> Turn:
    from ik_llama_cpp import IkLlama, _internals

    llama = IkLlama(model, n_ctx=n_context, n_threads=threads, verbose=False)

    def decode(tokens: list[int], position: int) -> None:
        batch = _internals.make_batch_range(tokens, pos_start=position, logits_last=True)
        if llama._context.decode(batch):
            raise RuntimeError("llama_decode failed")
        llama._context.get_logits(-1)  # waits for the result

    return peer_turn(decode, llama._context.kv_cache_clear)


def peer_turn(decode: Callable[[list[int], int], None], clear: Callable[[], None]) -> Turn:
    def turn(prompt: list[int], generated: list[int]) -> tuple[float, float]:
        clear()
        start = time.perf_counter()
        for i in range(0, len(prompt), 512):
            decode(prompt[i : i + 512], i)
        prefill = time.perf_counter() - start
        clear()
        decode(generated[:8], 0)
        start = time.perf_counter()
        for i, token in enumerate(generated):
            decode([token], 8 + i)
        return prefill, time.perf_counter() - start

    return turn


def serve(side: str, options: argparse.Namespace) -> None:
    n_context = max(options.prompt, options.generate + 8) + 8
    make = {"kbench": kbench_side, "llama.cpp": llama_cpp_side, "ik_llama.cpp": ik_llama_cpp_side}[side]
    turn = make(options.model, options.threads, n_context)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(turn(request["prompt"], request["generated"])), flush=True)


def median_interval(values: list[float]) -> tuple[float, float]:
    """Order statistics that enclose the median with probability >= 95 % (binomial)."""
    ordered, n = sorted(values), len(values)
    tail = 0.0
    for low in range(n // 2):
        tail += math.comb(n, low) / 2**n
        if tail > 0.025:
            return ordered[max(low - 1, 0)], ordered[n - 1 - max(low - 1, 0)]
    return ordered[0], ordered[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--against", choices=["llama.cpp", "ik_llama.cpp", "kbench"], default="llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-threads", type=int, help="default: the same")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=32000, help="token ids are drawn below this")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options)
        return

    def start(side: str, threads: int) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, options.model, "--serve", side, "--threads", str(threads)]
        command += ["--prompt", str(options.prompt), "--generate", str(options.generate)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            sys.exit(f"{side} did not start: run `{' '.join(command)}` to see why")
        return process

    rng = random.Random(0)
    sides = [start("kbench", options.threads), start(options.against, options.peer_threads or options.threads)]

    def turn(which: int) -> tuple[float, float]:
        process = sides[which]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        prefill, decode = json.loads(process.stdout.readline())
        return options.prompt / prefill, options.generate / decode

    request = {
        "prompt": [rng.randrange(options.vocabulary) for _ in range(options.prompt)],
        "generated": [rng.randrange(options.vocabulary) for _ in range(options.generate)],
    }
    turn(0), turn(1)
    rates: list[list[tuple[float, float]]] = [[], []]
    for pair in range(options.pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            rates[which].append(turn(which))
    for process in sides:
        process.kill()
    for index, name in enumerate((f"pp{options.prompt}", f"tg{options.generate}")):
        ours, theirs = ([rate[index] for rate in side] for side in rates)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, high = median_interval(ratios)
        print(
            f"{name:6} kbench {statistics.median(ours):8.1f} t/s   {options.against} "
            f"{statistics.median(theirs):8.1f} t/s   ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
            f"   {options.pairs} pairs, {options.threads} threads"
        )


if __name__ == "__main__":
    main()
