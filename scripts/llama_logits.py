"""How far kbench's logits are from llama.cpp's on a file, and whose rounding that is.

    python scripts/llama_logits.py deepseek-v2-lite.Q4_K_M.gguf --definition 24

Random tokens go through llama.cpp and through kbench, each in a process of its own. Both keep a float32 cache, so that
what differs is how activations are rounded: llama.cpp to int8 before every product, kbench in two int8 planes. In a
mixture of experts that moves tokens to other experts, and a token that went elsewhere cannot be compared; so kbench
runs with the experts that llama.cpp chose, too. Printed are mean, median and maximum over tokens of KL(first || second)
in nats, and the share of (token, layer) that go to the same experts.

``--definition`` runs the model a third time, slowly, by definition in float32 on dequantised weights
(definition_pass.py): with its own routes, with llama.cpp's, and with llama.cpp's routes and rounding.

Needs llama-cpp-python; with ik-llama-cpp-python also says how far these two are apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from definition_pass import DefinitionPass, Variant
from llama_graph import LAYER, ROUTES, GraphRun, ggml_dequantize, run_ik_llama_cpp, run_llama_cpp
from recorded_routes import recorded, router_module

from kbench.core import Placement, format_bytes
from kbench.engine import load_model
from kbench.model import describe_gguf, open_gguf, stored_bytes

Array = npt.NDArray[Any]
Sides = dict[str, Mapping[str, Array]]

KBENCH, LLAMA, IK, ROUTED = "kbench", "llama.cpp", "ik_llama.cpp", "llama.cpp's routes"
FORCED, ONE = f"kbench, {ROUTED}", f"kbench, one plane, {ROUTED}"
EXACT, EXACT_FORCED = "float32", f"float32, {ROUTED}"
ROUNDED = f"float32, {ROUTED} and rounding"
PEERS: dict[str, dict[str, Any]] = {f"{LLAMA}, not repacked": {"repack": False}, f"{LLAMA}, by 8 tokens": {"step": 8}}


def divergence(first: Array, second: Array) -> Array:
    """KL(first || second) of two ``[tokens, vocab]`` of logits, in nats, for each token."""
    p, q = (x.astype(np.float64) - x.max(axis=-1, keepdims=True) for x in (first, second))
    p, q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (p, q))
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def same_routes(first: Mapping[str, Array], second: Mapping[str, Array]) -> float:
    """Of all (token, layer), the share with the same set of experts."""
    names = [name for name in first if name.endswith(".gate")]
    pairs = [_both(first, second, name) for name in names]
    equal = [(np.sort(a, axis=-1) == np.sort(b, axis=-1)).all(axis=-1) for a, b in pairs]
    return float(np.mean(equal)) if names else 1.0


def graph_values(run: GraphRun) -> dict[str, Array]:
    """Values under kbench's names."""
    made = {"logits": run.logits}
    for name, value in run.values.items():
        kind, _, layer = name.rpartition("-")
        made[{LAYER: f"model.layers.{layer}", ROUTES: router_module(int(layer))}[kind]] = value
    return made


def llama_side(path: Path, ids: list[int], threads: int, target: Path, how: Mapping[str, Any]) -> None:
    np.savez(target, **graph_values(run_llama_cpp(path, ids, threads, **how)))


def ik_side(path: Path, ids: list[int], threads: int, target: Path) -> None:
    np.savez(target, **graph_values(run_ik_llama_cpp(path, ids, threads)))


def kbench_side(path: Path, ids: list[int], threads: int, folder: Path) -> None:
    """With its own routes, with llama.cpp's, and with these and activations in one plane."""
    forced = recorded(describe_gguf(open_gguf(path)), str(_file(folder, LLAMA)))
    kinds: dict[str, tuple[Mapping[str, Placement], int]] = {KBENCH: ({}, 2), FORCED: (forced, 2), ONE: (forced, 1)}
    weights = None
    for name, (placed, planes) in kinds.items():
        # Every weight is read once or twice: not worth packing.
        default = Placement(block={"activation_planes": planes, "layout": "raw"})
        session = load_model(
            path, placed, default=default, context=len(ids), kv="f32", threads=threads, trust=["recorded_routes"],
            weights=weights,
        )  # fmt: skip
        weights = session.weights
        values = {key.removesuffix(".ids"): value for key, value in session.trace(ids).items() if _kept(key)}
        np.savez(_file(folder, name), **values)


def definition_side(path: Path, ids: list[int], folder: Path, tokens: int) -> None:
    """Of the first ``tokens`` only: later ones change nothing for them."""
    with np.load(_file(folder, LLAMA)) as file:
        given = {name: file[name] for name in file.files if name.endswith(".gate")}
    kinds = {EXACT: Variant(), EXACT_FORCED: Variant(given), ROUNDED: Variant(given, rounded=True)}
    outcomes = DefinitionPass(path, ids[:tokens], list(kinds.values()), ggml_dequantize).run(_tell)
    for name, outcome in zip(kinds, outcomes, strict=True):
        layers = {f"model.layers.{i}": value for i, value in enumerate(outcome.layers)}
        np.savez(_file(folder, name), logits=outcome.logits, **layers, **outcome.routes)


def _tell(layer: str) -> None:
    print(f"  {layer}", file=sys.stderr, flush=True)


def _file(folder: Path, side: str) -> Path:
    return folder / f"{side.replace(' ', '-')}.npz"


def _kept(name: str) -> bool:
    return name == "logits" or name.endswith(".gate.ids") or name.rpartition(".")[0] == "model.layers"


def in_process(side: Callable[..., None], *arguments: Any) -> None:
    """Runs ``side`` in a process of its own, which gives all memory back; SystemExit where it fails."""
    process = multiprocessing.get_context("spawn").Process(target=side, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{side.__name__} failed: {process.exitcode}")


def run_sides(path: Path, ids: list[int], options: argparse.Namespace, folder: Path) -> Sides:
    """What every side computed, by its name; in ``folder``, where what is there is not computed again."""

    def made_by(side: Callable[..., None], names: Sequence[str], *arguments: Any) -> None:
        if not all(_file(folder, name).exists() for name in names):
            in_process(side, path, ids, *arguments)
        wanted.extend(names)

    wanted: list[str] = []
    made_by(llama_side, [LLAMA], options.threads, _file(folder, LLAMA), {})
    made_by(kbench_side, [KBENCH, FORCED, ONE], options.threads, folder)
    if options.definition:
        made_by(definition_side, [EXACT, EXACT_FORCED, ROUNDED], folder, options.definition)
    if options.peers:
        for name, how in PEERS.items():
            made_by(llama_side, [name], options.threads, _file(folder, name), how)
        if importlib.util.find_spec("ik_llama_cpp"):
            made_by(ik_side, [IK], options.threads, _file(folder, IK))
    made: Sides = {}
    for name in wanted:
        with np.load(_file(folder, name)) as stored:
            made[name] = dict(stored)
    return made


def line(first: str, second: str, sides: Sides) -> str:
    """One comparison."""
    p, q = _both(sides[first], sides[second], "logits")
    kl = divergence(p, q)
    routes = f"{same_routes(sides[first], sides[second]):7.2%}" if _has_routes(sides[second]) else "      -"
    return f"{first:28} {second:40} {len(kl):4} {kl.mean():9.2e} {np.median(kl):9.2e} {kl.max():9.2e}  {routes}"


def _both(first: Mapping[str, Array], second: Mapping[str, Array], name: str) -> tuple[Array, Array]:
    """A value of both sides, of the tokens that both ran."""
    n = min(len(first[name]), len(second[name]))
    return first[name][:n], second[name][:n]


def _has_routes(side: Mapping[str, Array]) -> bool:
    return any(name.endswith(".gate") for name in side)


def report(path: Path, ids: list[int], sides: Sides) -> None:
    """Prints all comparisons, and how far each layer's output is from the definition's."""
    print(f"{path.name}, {format_bytes(stored_bytes(path))}: {len(ids)} random tokens")
    print(f"{'first':28} {'second':40} of {'KL: mean':>11} {'median':>9} {'max':>9}  same experts")
    for name in sides:
        if name != LLAMA:
            print(line(LLAMA, name, sides))
    if EXACT not in sides:
        return
    print(line(EXACT, KBENCH, sides))
    print(line(EXACT, LLAMA, sides))
    print(line(EXACT_FORCED, FORCED, sides))
    print(line(EXACT_FORCED, ONE, sides))
    print(line(EXACT_FORCED, LLAMA, sides))
    print("output of a layer: norm of the difference over the norm, with llama.cpp's routes")
    pairs = {KBENCH: (FORCED, EXACT_FORCED), LLAMA: (LLAMA, EXACT_FORCED), "its rounding": (LLAMA, ROUNDED)}
    print(f"{'layer':>5}  kbench - float32   llama.cpp - float32   llama.cpp - float32 rounded as it does")
    for layer in range(sum(name.rpartition(".")[0] == "model.layers" for name in sides[EXACT])):
        values = (_both(sides[a], sides[b], f"model.layers.{layer}") for a, b in pairs.values())
        apart = [_apart(*value) for value in values]
        print(f"{layer:5}  {apart[0]:16.2e}   {apart[1]:19.2e}   {apart[2]:37.2e}")


def _apart(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--definition", type=int, default=0, metavar="N", help="the first N tokens by definition, too")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="llama.cpp in one way only")
    parser.add_argument(
        "--keep", type=Path, help="a folder for what every side computed, for another run to go on with"
    )
    options = parser.parse_args()
    for path in options.models:
        vocab = describe_gguf(open_gguf(path)).vocab
        ids = np.random.default_rng(options.seed).integers(0, vocab, options.tokens).tolist()
        with contextlib.ExitStack() as stack:
            root = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder = root / f"{path.stem}-{options.tokens}-{options.seed}"
            folder.mkdir(parents=True, exist_ok=True)
            report(path, ids, run_sides(path, ids, options, folder))


if __name__ == "__main__":
    main()
