#!/usr/bin/env python3
"""Measures every setting of three spaces on this machine, for the test that replays searches over them.

    python scripts/record_spaces.py tests/tuner/data --cpu-time       # some minutes

A file holds a line for each setting: thread count, kernel parameters, microseconds. The settings are gone through
several times, in another order each time, and the lower quarter of all samples of a setting counts: whoever else runs
makes samples slower, never faster, and a search is to be judged by the machine, not by its guests.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from pathlib import Path

from kbench.core import Problem
from kbench.kernels import best
from kbench.measure import FixedCount, calibrate, host, measure
from kbench.suites import run_cells, runner
from kbench.tuner import search_space
from kbench.tuner.cell_space import CHANGES_RESULTS, CellSpace, Setting, cell_space

# Name -> problem, and parameters that stay at their defaults so that every setting can be measured in minutes. How
# threads share the work is one of them: with one thread it is no choice.
SPACES = {
    "linear-4-tokens": (Problem.make("linear", quant="Q4_K", n=512, k=1024, tokens=4), ("k_block", "chunk_bytes")),
    "linear-64-tokens": (Problem.make("linear", quant="Q4_K", n=512, k=1024, tokens=64), ("prefetch_bytes",)),
    "experts": (
        Problem.make(
            "moe_experts", experts=16, top_k=2, n=512, k=512, tokens=16,
            quant_gate="Q4_K", quant_up="Q4_K", quant_down="Q6_K",
        ),
        ("chunk_bytes", "prefetch_bytes"),
    ),
}  # fmt: skip
# Each of them is the mean of a turn round as many matrices as a cold cache needs: hundreds of calls.
_SAMPLES = 2


def space_of(name: str) -> CellSpace:
    problem, fixed = SPACES[name]
    implementation = best(problem)
    return cell_space(
        problem,
        implementation,
        (1,),
        search_space(problem, implementation),
        fixed=(*CHANGES_RESULTS, "partition", *fixed),
    )


def quantile(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def record(name: str, folder: Path, rounds: int, cpu_time: bool) -> None:
    space = space_of(name)
    samples: dict[Setting, list[float]] = {}
    for turn in range(rounds):
        order = list(space.allowed)
        random.Random(turn).shuffle(order)
        cells = [space.cell(setting) for setting in order]
        results = run_cells(cells, None, stopping=lambda: FixedCount(_SAMPLES), verify=False)
        for setting, result in zip(order, results, strict=True):
            if result.median is None:
                sys.exit(f"{name} {setting}: {result.status} {result.reason}")
            samples.setdefault(setting, []).extend(result.samples)
        print(f"{name}: round {turn + 1} of {rounds}, {len(order)} settings", file=sys.stderr)
    clock = ", seconds of CPU time" if cpu_time else ""
    lines = [
        f"# {space.problem.key}, {space.implementation}",
        f"# {host().cpu.model}; the lower quarter of {rounds} times {_SAMPLES} samples{clock}",
        ",".join([*space.axes, "microseconds"]),
        *(",".join([*map(str, setting), f"{1e6 * quantile(samples[setting]):.2f}"]) for setting in space.allowed),
    ]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=SPACES)
    parser.add_argument("--cpu-time", action="store_true", help="time of the CPU: others may be at work")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        runner.measure = functools.partial(measure, clock=calibrate(time.process_time_ns))
    for name in [arguments.only] if arguments.only else SPACES:
        record(name, arguments.folder, arguments.rounds, arguments.cpu_time)


if __name__ == "__main__":
    main()
