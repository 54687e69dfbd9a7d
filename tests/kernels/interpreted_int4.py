"""Checks the interpreted int4 kernels; prints a JSON list of cases. Needs TRITON_INTERPRET=1."""

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
from kbench.kernels.triton import int4_kernels, int4_product
from kbench.kernels.triton.int4_product import halved, multiply
from kbench.kernels.triton.int4_rows import CHUNK, int4_matrix, weights_of
from kbench.kernels.triton.int4_tile import Cut, Int4Tile
from kbench.model import build_tree, describe_gguf, open_gguf, synthesize

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script of its own finds its neighbours' modules itself
from tiny_models import make_tiny

# Rows of activations, rows and columns of weights, group, type of the activations, cut: None is what the heuristic
# takes. Rows that fill no tile or one exactly, columns that fill no chunk and no group, parts that come out uneven, and
# blocks of which most does not exist.
CASES: tuple[tuple[int, int, int, int, str, Cut | None], ...] = (
    (1, 40, 512, 128, "float32", None),
    (1, 1, 32, 64, "float32", None),
    (3, 64, 576, 128, "float16", None),
    (7, 65, 1408, 64, "bfloat16", None),
    (17, 70, 256, 128, "float32", None),
    (9, 129, 768, 128, "float32", Cut(Int4Tile(16, 128, 4, 4), 2)),
    (5, 60, 1536, 64, "float16", Cut(Int4Tile(8, 64, 4, 4), 4)),
    (2, 30, 1280, 128, "bfloat16", Cut(Int4Tile(16, 64, 4, 4), 5)),
    (33, 20, 512, 128, "float32", Cut(Int4Tile(128, 128, 8, 2), 1)),
)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def bound(x: torch.Tensor, weights: torch.Tensor, cut: Cut | None) -> torch.Tensor:
    """Products of 11 bits by 4 are exact in float32. Of what is added up in it, in any order: six deviations, as
    ``kbench.kernels.tolerance`` derives. So too where weights with their scales are rounded to float16."""
    found = 6 * weights.shape[1] ** 0.5 * 2.0**-24 * (x.abs() @ weights.abs().T) + 1e-30
    if cut is not None and not cut.tile.scales_sums:
        found += 6 * 2.0**-11 * (1 / 3) ** 0.5 * (x.square() @ weights.square().T).sqrt()
    return found


def case(m: int, n: int, k: int, group: int, dtype: str, cut: Cut | None) -> dict[str, object]:
    """Against float64 products of the very numbers that the kernel was given."""
    rng = np.random.default_rng(m * n + k)
    raw = rng.standard_normal((n, k)).astype(np.float32).view(np.uint8).reshape(-1)
    matrix = int4_matrix(raw, "F32", k, "cpu", group)
    x = torch.from_numpy((rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 4, (m, 1))).astype(np.float32))
    x = x.to(getattr(torch, dtype))
    exact = x.double()
    if dtype == "float32":  # rounded once, to float16 in its row's range
        halves, scale = halved(x, k)
        exact = halves.double() * scale.double()[:, None]
        # Half a unit of float16's last place, below its normal range half of the smallest step.
        assert ((exact - x).abs() <= 2.0**-11 * x.abs() + 2.0**-25 * scale[:, None]).all()
    y = multiply(x, matrix, cut)
    weights = weights_of(matrix)
    off = (y.double() - exact @ weights.T).abs() / bound(exact, weights, cut)
    ok = y.shape == (m, n) and y.dtype == torch.float32 and bool(off.max() < 1)
    return {
        "kind": "product",
        "m": m,
        "n": n,
        "k": k,
        "group": group,
        "dtype": dtype,
        "ok": ok,
        "off": float(off.max()),
    }


def edges() -> list[dict[str, object]]:
    """Rows of zeros, near both ends of float32, and of what is no number, which stays in its row."""
    x = torch.ones(6, 300)
    x[1], x[2], x[3] = 0, 1e-38, 3e38
    x[4, 7], x[5, 7] = float("nan"), float("inf")
    raw = np.full((3, 300), 0.5, dtype=np.float32).view(np.uint8).reshape(-1)
    y = multiply(x, int4_matrix(raw, "F32", 300, "cpu"))
    right = torch.tensor([150.0, 0.0, 150e-38, 4.5e40])
    finite = torch.allclose(y[:3], right[:3, None].expand(3, 3), rtol=1e-3, atol=0)
    ok = finite and bool(torch.isinf(y[3]).all()) and not bool(torch.isfinite(y[4:]).any())
    return [{"kind": "edges", "ok": ok, "off": str(y[:, 0].tolist())}]


def parts() -> list[dict[str, object]]:
    """Sums of parts come in their order, whatever was in the output before."""
    values = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 3000)).astype(np.float32))
    out = poisoned((3000,), torch.float32)
    int4_kernels.add_parts[(3,)](values, out, 5, 3000, BLOCK=1024)
    total = values[0].clone()
    for part in values[1:]:
        total += part
    return [{"kind": "parts", "ok": torch.equal(out, total), "off": 0}]


def nothing_beyond() -> list[dict[str, object]]:
    """Every tensor ends in a guard: nothing is written there, and nothing of it reaches a result."""
    rng, m, n, k = np.random.default_rng(5), 3, 40, 512
    matrix = int4_matrix(rng.standard_normal((n, k)).astype(np.float32).view(np.uint8).reshape(-1), "F32", k, "cpu")
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(np.float32))

    def guarded(t: torch.Tensor, fill: float) -> torch.Tensor:
        room = torch.full((t.numel() + 512,), fill, dtype=t.dtype)
        room[256:-256] = t.reshape(-1)
        return room

    halves, scale = halved(x, k)
    rooms = [guarded(halves, float("nan")), guarded(matrix.words, 0x5A5A), guarded(matrix.scale, float("nan")),
             guarded(scale, float("nan")), guarded(poisoned((2, m, n), torch.float32), 7.0)]  # fmt: skip
    cut = Cut(Int4Tile(16, 128, 4, 4), 2)
    int4_kernels.int4_product[(1, 2, 1)](
        *(room[256:-256] for room in rooms), m, n, k // CHUNK, 1, len(matrix.words), 1 / matrix.unit,
        num_warps=4, num_stages=2, **int4_product.product_constants(128, False, cut, asm=False),
    )  # fmt: skip
    out = rooms[-1][256:-256].reshape(2, m, n)
    untouched = bool((rooms[-1][:256] == 7).all() and (rooms[-1][-256:] == 7).all())
    ok = untouched and torch.equal(out[0] + out[1], multiply(x, matrix, cut))
    return [{"kind": "guards", "ok": ok, "off": 0}]


def protocol(quant: str, tokens: int, group: int) -> dict[str, object]:
    """As every implementation is checked: against the stored weights, within what 4 bits explain."""
    item, problem = implementation("marlin"), Problem.make("linear", quant=quant, n=70, k=512, tokens=tokens)
    made = example(problem, np.random.default_rng(tokens), bias=tokens == 3)
    prepared = item.prepare(problem, made.weights, {"group": group})
    y = item.run(made.call, prepared, made.inputs, made.state, 1)
    found = check(made.call, made.weights, made.inputs, made.state, y, item.accuracy(problem))  # type: ignore[attr-defined]
    wrong = check(made.call, made.weights, made.inputs, made.state, [2 * y[0]], "int4")
    return {"kind": "protocol", "quant": quant, "ok": found.ok and not wrong.ok, "off": found.worst}


def model() -> dict[str, object]:
    """A model under ``marlin`` rules on an alias is the model of the rounded weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        synthesize(make_tiny("llama", "Q8_0"), path, seed=4)
        names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
        options: dict[str, Any] = {"kv": "f32", "context": 32, "threads": 1}
        gpu = Device("cuda", 0)
        here = load_model(path, {n: Placement(CPU, "reference", CPU, "reference") for n in names}, **options)
        there = load_model(
            path, {n: Placement(gpu, "marlin", gpu, "marlin") for n in names}, alias={gpu: CPU}, **options
        )
        right, found = (session.prefill([5, 17, 3]).copy() for session in (here, there))
        off = float(np.linalg.norm(found - right) / np.linalg.norm(right))
        rounded = there.report.rounded
    # Some 14 products in a row (7 a layer), each with weights that are off by up to a tenth, independently.
    ok = not there.report.stand_ins and len(rounded) >= 14 and 1e-3 < off < 0.1 * 15**0.5
    ok = ok and all(0.01 < error.relative_rms < 0.12 for error in rounded)
    return {"kind": "model", "ok": ok, "off": [off, len(rounded), str(there.report.stand_ins)]}


if __name__ == "__main__":
    found = [case(*row) for row in CASES]
    found += [protocol("Q4_K", 1, 128), protocol("Q6_K", 3, 64), protocol("IQ4_XS", 17, 128)]
    print(json.dumps([*found, *edges(), *parts(), *nothing_beyond(), model()]))
