"""Checks what the interpreted kernel makes of stored blocks; prints a JSON list of cases. Needs TRITON_INTERPRET=1."""

from __future__ import annotations

import json

import numpy as np
import torch

from kbench.core import Problem, quant
from kbench.kernels import check, dequantize, example, implementation
from kbench.kernels.triton import block_tensor
from kbench.kernels.triton.block_tensor import BLOCK_TYPES

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def numbers(name: str) -> list[dict[str, object]]:
    """Any bytes at all, more than fill a program, to the last block: bit for bit the definition's, rounded once."""
    traits = quant(name)
    blocks = 1024 // traits.block_elements + 3
    raw = np.random.default_rng(7).integers(0, 256, (blocks, traits.block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        raw[:2, 0] = 0, 1  # powers of two that are no normal numbers
    with np.errstate(over="ignore", invalid="ignore"):
        right = torch.from_numpy(dequantize(raw, name, traits.block_elements).reshape(-1))
    # Scales that are no numbers, or infinite, make no numbers here and there.
    fine = torch.isfinite(right)
    assert fine.float().mean() > 0.5
    cases: list[dict[str, object]] = []
    for dtype in DTYPES.values() if name in ("Q4_K", "IQ2_XXS") else (torch.float32,):
        found = block_tensor.read(torch.from_numpy(raw), name, dtype)
        if dtype == torch.bfloat16:  # the interpreter cuts off what a GPU rounds
            same = bool(((found.float() - right)[fine].abs() <= 2**-7 * right[fine].abs() + 1e-38).all())
        else:
            same = torch.equal(found[fine], right.to(dtype)[fine])
        same = same and bool((~torch.isfinite(found[~fine].float())).all())
        cases.append({"quant": name, "what": str(dtype), "ok": same and len(found) == len(right)})
    return cases


def outside(name: str) -> dict[str, object]:
    """Nothing is read or written beside the blocks: what stands there would show, or be gone."""
    traits = quant(name)
    raw = np.random.default_rng(8).integers(0, 256, 5 * traits.block_bytes, dtype=np.uint8)
    n = 2 * traits.block_elements
    wide = torch.full((3 * n,), 77.0)
    middle = torch.from_numpy(raw)[traits.block_bytes * 2 : traits.block_bytes * 4]
    original = torch.empty
    torch.empty = lambda *_, **__: wide[n : 2 * n]  # type: ignore[assignment]
    try:
        block_tensor.read(middle, name, torch.float32)
    finally:
        torch.empty = original
    right = block_tensor.read(middle.clone(), name, torch.float32)
    inside = torch.equal(wide[n : 2 * n].nan_to_num(), right.nan_to_num())
    return {
        "quant": name,
        "what": "outside",
        "ok": inside and bool((wide[:n] == 77).all() & (wide[2 * n :] == 77).all()),
    }


def operation(op: str, name: str, **sizes: int) -> dict[str, object]:
    fields = ("quant_gate", "quant_up", "quant_down") if op == "moe_experts" else ("quant",)
    item, problem = implementation("triton"), Problem.make(op, **dict.fromkeys(fields, name), **sizes)
    assert item.supports(problem).ok
    made = example(problem, np.random.default_rng(3), bias=op != "embedding")
    prepared = item.prepare(problem, made.weights)
    stored = sum(weight.raw.nbytes for weight in made.weights)
    y = item.run(made.call, prepared, made.inputs, made.state, 1)
    found = check(made.call, made.weights, made.inputs, made.state, y, item.accuracy(problem))
    ok = found.ok and prepared.n_bytes == stored
    return {"quant": name, "what": op, "ok": ok, "reason": found.reason or f"{prepared.n_bytes} of {stored} bytes"}


if __name__ == "__main__":
    block_tensor.SLICE_BYTES = 3 * 256 * 4  # three rows at a time
    cases = [case for name in BLOCK_TYPES for case in numbers(name)]
    cases += [outside(name) for name in ("Q8_0", "IQ3_S")]
    cases += [operation("linear", name, n=7, k=256, tokens=5) for name in ("Q2_K", "IQ1_M", "NVFP4")]
    cases += [operation("moe_experts", "IQ2_XXS", experts=3, top_k=2, n=256, k=256, tokens=2)]
    cases += [operation("embedding", name, vocab=40, d=256, tokens=3) for name in ("Q4_K", "IQ2_S")]
    print(json.dumps(cases))
