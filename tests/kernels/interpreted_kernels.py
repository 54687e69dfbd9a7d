"""Checks the interpreted kernels on every type of weights; prints a JSON list of cases. Needs TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kbench.core import CPU, Device, Placement, Problem
from kbench.engine import load_model
from kbench.kernels import check, example, implementation
from kbench.kernels.triton.plane_matrix import multiply, plane_matrix
from kbench.kernels.triton.planes import PLANE_FORMATS
from kbench.kernels.triton.tile import Tile
from kbench.model import build_tree, describe_gguf, open_gguf, synthesize

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script of its own finds its neighbours' modules itself
from tiny_models import make_tiny

# tokens, rows, columns: each kind of tile, rows that fill none.
SHAPES = ((1, 40, 512), (3, 33, 256), (17, 40, 512))
# Columns that fill no chunk, one row alone, every count of rows that few_rows adds up, and tiles that are cut.
ODD = ((1, 1, 1408), (2, 33, 384), (4, 16, 384), (5, 17, 1408))
# By bits and kind of scale: 4 and float16, 4 and nested, 6, 8.
CUT = ("Q4_0", "Q4_K", "Q6_K", "Q8_0")


def case(quant: str, tokens: int, n: int, k: int) -> dict[str, object]:
    item, problem = implementation("triton"), Problem.make("linear", quant=quant, n=n, k=k, tokens=tokens)
    made = example(problem, np.random.default_rng(tokens), bias=tokens == 3)
    y = item.run(made.call, item.prepare(problem, made.weights), made.inputs, made.state, 1)
    found = check(made.call, made.weights, made.inputs, made.state, y, item.accuracy(problem))
    return {"quant": quant, "tokens": tokens, "n": n, "k": k, "ok": found.ok, "reason": found.reason}


def tiles(quant: str) -> list[dict[str, object]]:
    """Other ways to cut a product: parts of the columns, tiles larger than the product."""
    made = example(Problem.make("linear", quant=quant, n=37, k=1024, tokens=3), np.random.default_rng(9))
    matrix = plane_matrix(made.weights[0].raw, quant, 1024, "cpu")
    cases: list[dict[str, object]] = []
    for tile in (Tile(4, 64, 4, 2, 3), Tile(16, 32, 4, 2, 2, True)):
        y = [multiply(torch.from_numpy(made.inputs[0]), matrix, tile).numpy()]
        found = check(made.call, made.weights, made.inputs, made.state, y, "f16" if tile.tensor_cores else "f32")
        cases.append({"quant": quant, "tokens": 3, "tile": str(tile), "ok": found.ok, "reason": found.reason})
    return cases


def model() -> dict[str, object]:
    """A model under ``triton`` rules on an alias: a prompt of few rows, multiplied in float32, and one of many."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        synthesize(make_tiny("llama", "Q4_K_M"), path, seed=4)
        names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
        options: dict[str, Any] = {"kv": "f32", "context": 32, "threads": 1}
        gpu = Device("cuda", 0)
        here = load_model(path, {n: Placement(CPU, "reference", CPU, "reference") for n in names}, **options)
        there = load_model(
            path, {n: Placement(gpu, "triton", gpu, "triton") for n in names}, alias={gpu: CPU}, **options
        )
        assert not there.report.stand_ins, "interpreted, not replaced"
        off = []
        for tokens in ([5, 17, 3], [9, 19, 29, 40, 41, 42]):
            right, found = (session.prefill(tokens).copy() for session in (here, there))
            off.append(float(np.linalg.norm(found - right) / np.linalg.norm(right)))
    # Float32: 1e-5, as implementations are held to layer by layer. Float16: each of some 20 products in a row adds
    # 2^-11 * sqrt(2 / 3) of its norm, independently: 2e-3, and a safety factor of 3.
    return {"quant": "model", "tokens": 0, "ok": off[0] < 1e-5 and off[1] < 6e-3, "reason": f"off by {off}"}


if __name__ == "__main__":
    found = [case(quant, *shape) for quant in PLANE_FORMATS for shape in SHAPES]
    found += [case(quant, *shape) for quant in ("Q4_0", "Q8_0") for shape in ODD]
    found += [row for quant in CUT for row in tiles(quant)]
    print(json.dumps([*found, model()]))
