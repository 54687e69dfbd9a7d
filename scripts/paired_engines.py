"""Times kbench against other engines on GGUF files, in pairs.

    python scripts/paired_engines.py model.gguf --against llama.cpp --against ik_llama.cpp --pairs 12

Each side lives in a process of its own that loads the model and then waits; they take turns (``pairing.py``). A turn is
one prefill (pp) of ``--prompt`` tokens into an empty cache and one decode (tg) of ``--generate`` tokens after a prompt
of 8; tokens are seeded random ids, the same for all. Printed: median tokens/s of each side, and the median over pairs
of the ratio of tokens/s (kbench / peer) with its interval. Before that, how far the logits after 8 tokens are from
kbench's: all sides must be computing the same thing.

Peers: ``llama.cpp`` is the package llama-cpp-python, ``ik_llama.cpp`` the package ik-llama-cpp-python, whose library
``IK_LLAMA_CPP_LIB_PATH`` replaces by one built for the CPU at hand, ``kbench`` is kbench. Options of a side follow it:
``--against kbench:threads=1,planes=2``, ``--against ik_llama.cpp:repack=0``; ``threads`` is an option of every side.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from engine_sides import BEGINNING, SIDES
from pairing import Comparison, Rates, Side, report, serve, take_turns

from kbench.model import describe_gguf, open_gguf

# Memory of a side in sizes of the file: packed or repacked weights; llama.cpp repacks what it can and reads the rest,
# and what is left of the file besides is given up under pressure.
_MEMORY = {"kbench": 1.06, "ik_llama.cpp": 1.06, "llama.cpp": 1.2}
_PROCESS_BYTES = 300 << 20


def parse_side(text: str) -> tuple[str, dict[str, int]]:
    """``name[:option=number,...]``."""
    name, _, tail = text.partition(":")
    if name not in SIDES:
        sys.exit(f"no side {name!r}: {', '.join(SIDES)}")
    try:
        return name, {key: int(value) for key, value in (item.split("=") for item in tail.split(",") if item)}
    except ValueError:
        sys.exit(f"{text!r}: options are name=number, separated by commas")


def serve_side(text: str, model: str, threads: int, n_context: int) -> None:
    name, options = parse_side(text)
    threads = options.pop("threads", threads)
    turns, about = SIDES[name](Path(model), threads, n_context, options)
    serve(turns, about | {"threads": threads})


def compare(model: Path, options: argparse.Namespace) -> list[Comparison]:
    n_context = max(options.prompt, options.generate + BEGINNING)
    ours = "kbench" + (f":planes={options.planes}" if options.planes else "")
    sides = []
    for text in (ours, *options.against):
        arguments = [__file__, str(model), "--serve", text, "--threads", str(options.threads)]
        arguments += ["--context", str(n_context)]
        n_bytes = _PROCESS_BYTES + round(model.stat().st_size * _MEMORY[parse_side(text)[0]])
        sides.append(Side(text, arguments, n_bytes))
    vocabulary = describe_gguf(open_gguf(model)).vocab
    rng = random.Random(0)
    request = {
        "prompt": [rng.randrange(vocabulary) for _ in range(options.prompt)],
        "beginning": [rng.randrange(vocabulary) for _ in range(BEGINNING)],
        "generated": [rng.randrange(vocabulary) for _ in range(options.generate)],
    }
    warm_up = {**request, "generated": request["generated"][:8]}
    at_once = {"yes": True, "no": False, "auto": None}[options.at_once]
    if options.logits:
        answers = take_turns(sides, 1, {**request, "logits": True}, {**warm_up, "logits": True}, at_once=at_once)
        print_distances(answers)
    answers = take_turns(sides, options.pairs, request, warm_up, at_once=at_once, visit=options.visit)
    return [*rows(model, sides, answers, options)]


def rows(model: Path, sides: list[Side], answers: Rates, options: argparse.Namespace) -> list[Comparison]:
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


def print_distances(answers: Rates) -> None:
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
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--context", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.against = options.against or ["llama.cpp"]
    if options.serve:
        serve_side(options.serve, options.models[0], options.threads, options.context)
        return
    for model in options.models:
        print(f"{Path(model).stem}: pp{options.prompt}, tg{options.generate}", flush=True)
        report(compare(Path(model), options), options.store)


if __name__ == "__main__":
    main()
