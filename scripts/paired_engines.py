"""Times kbench against other engines on GGUF files, in pairs.

    python scripts/paired_engines.py model.gguf --against llama.cpp --against ik_llama.cpp --pairs 12

Each side lives in a process of its own that loads the model and then waits; they take turns (``kbench.measure.Turns``).
A turn is one prefill (pp) of ``--prompt`` tokens into an empty cache and one decode (tg) of ``--generate`` tokens after
a prompt of 8; tokens are seeded random ids, the same for all. Printed: median tokens/s of each side, and the median
over pairs of the ratio of tokens/s (kbench / peer) with its interval. Before that, how far the logits after 8 tokens
are from kbench's: all sides must be computing the same thing.

Peers: ``llama.cpp`` is the package llama-cpp-python, ``ik_llama.cpp`` the package ik-llama-cpp-python, whose library
``IK_LLAMA_CPP_LIB_PATH`` replaces by one built for the CPU at hand, ``kbench`` is kbench. Options of a side follow it:
``--against kbench:threads=1,planes=2``, ``--against ik_llama.cpp:repack=0``; ``threads`` is an option of every side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pairing import Comparison, report

from kbench.core import KbenchError
from kbench.measure import Answers, Side, Turns
from kbench.model import describe_gguf, open_gguf
from kbench.suites import Workload, engine_side


def compare(model: Path, options: argparse.Namespace) -> list[Comparison]:
    workload = Workload(options.prompt, options.generate)
    ours = f"kbench:planes={options.planes or 0}"  # 0: both
    sides = [
        engine_side("kbench" if text == ours else text, model, text, options.threads, workload.context)
        for text in (ours, *options.against)
    ]
    request = workload.request(describe_gguf(open_gguf(model)).vocab)
    warm_up = {**request, "generated": request["generated"][:8]}
    at_once = {"yes": True, "no": False, "auto": None}[options.at_once]
    with Turns(sides, warm_up, at_once, options.visit) as turns:
        if options.logits:
            print_distances(turns.take(1, {**request, "logits": True}))
        answers = turns.take(options.pairs, request)
    return [*rows(model, sides, answers, options)]


def rows(model: Path, sides: list[Side], answers: Answers, options: argparse.Namespace) -> list[Comparison]:
    found = []
    for index, (op, n) in enumerate((("prefill", options.prompt), ("decode", options.generate))):
        for variant in sides[0].variants:
            for side in sides[1:]:
                for theirs in side.variants:
                    rates = [
                        tuple(n / answer[index] for answer in answers[key])
                        for key in ((sides[0].name, variant), (side.name, theirs))
                    ]
                    found.append(
                        Comparison(
                            op, {"model": model.stem, "n": n}, label("kbench", variant), label(side.name, theirs),
                            rates[0], rates[1], "t/s",
                            options.threads,
                            {"peer": side.about, "peak_bytes": [sides[0].peak_bytes, side.peak_bytes]},
                        )
                    )  # fmt: skip
    return found


def label(side: str, variant: str) -> str:
    """A side's name with the variant that it does not say itself."""
    return side if variant in side else f"{side}:{variant}"


def print_distances(answers: Answers) -> None:
    """Norm-wise distance of every side's logits from the first's."""
    import numpy as np

    (first, (reference,)), *others = answers.items()
    truth = np.asarray(reference)
    for name, (values,) in others:
        distance = np.linalg.norm(np.asarray(values) - truth) / np.linalg.norm(truth)
        print(f"logits of {label(*name)}: {distance:.2%} from those of {label(*first)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="GGUF files, one after the other")
    parser.add_argument("--against", action="append", help="a peer, with options; may be repeated [llama.cpp]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--planes", type=int, choices=[1, 2], help="kbench's activation planes; both without it")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--at-once", choices=["auto", "yes", "no"], default="auto",
                        help="keep all sides loaded, or one at a time; auto asks the free memory")  # fmt: skip
    parser.add_argument("--visit", type=int, default=2, help="turns of a side before the next is loaded in its place")
    parser.add_argument("--logits", action="store_true", help="compare the sides' logits first")
    parser.add_argument("--store", metavar="DIR", help="append records to this results folder")
    options = parser.parse_args()
    options.against = options.against or ["llama.cpp"]
    for model in options.models:
        print(f"{Path(model).stem}: pp{options.prompt}, tg{options.generate}", flush=True)
        try:
            report(compare(Path(model), options), options.store)
        except KbenchError as error:
            sys.exit(error.message)


if __name__ == "__main__":
    main()
