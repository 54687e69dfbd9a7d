"""Checks what a step is made of besides products, interpreted; prints a JSON list of cases. Needs TRITON_INTERPRET=1.

What kernels do not write is NaN, and so are rows of pages that no token sees, pages that are nobody's, and what lies
around them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from kbench.core import CPU, Device, Placement, Problem
from kbench.engine import Sampler, SamplingParams, load_model
from kbench.kernels import (
    PAGE_TOKENS,
    PagedCache,
    StepState,
    check,
    example,
    first_seen,
    implementation,
    pages_for,
    slots,
    stored_tensor,
)
from kbench.kernels.cache import Cache, append, encode, stored_shape
from kbench.kernels.triton import sampling, small_ops, triton_device
from kbench.model import build_tree, describe_gguf, open_gguf, synthesize

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script of its own finds its neighbours' modules itself
from float32_torch import in_float32
from tiny_models import make_tiny

YARN = {"scaling": "yarn", "factor": 40.0, "original_context": 4096, "mode": "norm", "head_dim": 24}
# (problem, attributes that differ from the usual): vectors that fill no block, one row alone.
SMALL = (
    ("rms_norm(d=576,rows=1,tokens=3)", {"eps": 1e-5}),
    ("rms_norm(d=40,rows=5,tokens=2)", {}),
    ("rms_norm(d=2048,rows=1,tokens=1)", {}),
    ("rope(heads=3,d=64,tokens=5)", {"mode": "norm"}),
    ("rope(heads=5,d=40,tokens=2)", {"mode": "neox"}),
    ("rope(heads=2,d=8,tokens=4)", YARN),
    ("rope(heads=3,d=16,tokens=2)", {"mode": "neox", "part": "first", "head_dim": 40}),
    ("rope(heads=1,d=64,tokens=2)", {"mode": "norm", "head_dim": 576}),
    ("silu_mul(n=37,tokens=4)", {}),
    ("silu_mul(n=1536,tokens=1)", {}),
    ("add(d=577,tokens=3)", {}),
    ("gated_add(d=577,tokens=2)", {}),
    ("top_logits(vocab=1500,top_k=3,tokens=2)", {}),
    ("top_logits(vocab=2500,top_k=1,tokens=1)", {}),
)
# Heads that fill no block and more than one, widths that are no power of two.
LATENT = "mla_attention(heads={},kv_lora={},rope={},kv={},tokens={},context={},window={})"
HEADS = "attention(heads={},kv_heads={},d={},kv={},tokens={},context={},window={})"


def small(key: str, attrs: dict[str, object]) -> dict[str, object]:
    item, problem = implementation("triton"), Problem.parse(key)
    assert item.supports(problem).ok
    made = example(problem, np.random.default_rng(3), attrs=attrs)  # type: ignore[arg-type]
    y = item.run(made.call, item.prepare(problem, made.weights), made.inputs, made.state, 1)
    found = check(made.call, made.weights, made.inputs, made.state, y, item.accuracy(problem))
    return {"what": key, "ok": found.ok, "reason": found.reason}


def attention(
    key: str, spans: list[tuple[int, int, int]], capacity: int, sinks: bool = False, scale: float = 1.0, shared: int = 0
) -> dict[str, object]:
    """One step of ``spans`` over pages for ``capacity`` tokens of a sequence, the first ``shared`` ones of all of them
    the same: outputs within bounds, the pages with its rows and nothing else. What no token sees is poisoned: other
    rows of a page, other pages, what lies around them; the table names only pages of positions that are seen."""
    problem = Problem.parse(key)
    rng = np.random.default_rng(capacity)
    made = example(problem, rng, bias=sinks)
    inputs = [(a * scale).astype(np.float32) if i == 0 else a for i, a in enumerate(made.inputs)]
    kv, window, n = problem.text("kv"), problem.integer("window"), max(s for s, _, _ in spans) + 1
    latent = problem.op == "mla_attention"
    heads = 1 if latent else problem.integer("kv_heads")
    d = problem.integer("kv_lora") + problem.integer("rope") if latent else problem.integer("d")
    bits = {"f16": np.float16, "bf16": np.uint16}[kv]
    nan = (np.array([np.nan], np.float16) if kv == "f16" else np.array([0x7FC0], np.uint16))[0]
    each = pages_for(capacity)
    # Side by side, for the definition: a ring of whole pages, too.
    arrays = [np.full((n, *stored_shape(kv, heads, each * PAGE_TOKENS, d)), nan, bits) for _ in range(2 - latent)]
    numbers = rng.permutation(n * each + 2).astype(np.int32)  # two of them nobody's
    table = np.full((n, each), -1, np.int32)
    for sequence, position, rows in spans:
        begin = first_seen(position, window)
        used = {p // PAGE_TOKENS % each for p in range(begin, position + rows)}
        table[sequence, sorted(used)] = numbers[sequence * each + np.array(sorted(used))]
        for stored in arrays if begin < position else ():
            made_rows = encode(kv, rng.standard_normal((heads, position - begin, d), dtype=np.float32))
            stored[sequence][:, slots(begin, position, each * PAGE_TOKENS)] = made_rows
    table[1:, : shared // PAGE_TOKENS] = table[0, : shared // PAGE_TOKENS]
    for stored in arrays:
        stored[1:, :, :shared] = stored[0, :, :shared]

    def on_pages(stored: np.ndarray, behind: int = 0) -> np.ndarray:
        """``stored`` of the positions that are seen, and of ``behind`` of each span, in a pool with a page before and
        behind it."""
        flat = np.full((heads * (n * each + 2) + 2) * PAGE_TOKENS * d, nan, bits)
        pool = flat[PAGE_TOKENS * d : -PAGE_TOKENS * d].reshape(heads, -1, d)
        for sequence, position, rows in spans:
            for p in range(first_seen(position, window), position + rows * behind):
                to = table[sequence, p // PAGE_TOKENS % each] * PAGE_TOKENS + p % PAGE_TOKENS
                pool[:, to] = stored[sequence][:, p % (each * PAGE_TOKENS)]
        return flat

    pools = [on_pages(stored) for stored in arrays]
    views = [stored_tensor(flat[PAGE_TOKENS * d : -PAGE_TOKENS * d].reshape(heads, -1, d)) for flat in pools]
    there = PagedCache(views[0], views[-1] if not latent else views[0][:, :, :0], kv, torch.from_numpy(table))
    rows = np.array(spans, np.int64)
    k, v = arrays[0], arrays[-1] if not latent else np.empty((n, 0, each * PAGE_TOKENS, d), bits)
    state = StepState(np.zeros(int(rows[:, 2].sum()), np.int32), spans[0][1], {0: Cache(k, v, kv)}, rows)
    device = triton_device("cpu")
    on_device = StepState(state.tokens, state.position, {0: there}, rows)  # type: ignore[dict-item]
    x = [torch.from_numpy(a) for a in inputs]
    prepared = device.prepare(problem, made.weights)
    y = device.compute(made.call, prepared, x, on_device)[0].numpy()
    for stored, new in zip(arrays, inputs[1:], strict=True):
        for sequence, position, span in state.parts():
            append(stored, kv, sequence, position, new[span].reshape(-1, heads, d).transpose(1, 0, 2), window)
    wanted = [on_pages(stored, 1) for stored in arrays]
    same = all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(pools, wanted, strict=True))
    found = check(made.call, made.weights, inputs, state, [y], device.accuracy(problem))
    return {"what": f"{key} {spans}", "ok": found.ok and same, "reason": found.reason or f"cache right: {same}"}


def draws() -> list[dict[str, object]]:
    """Candidates, probabilities and tokens are the host's, for the same random numbers."""
    logits = (3 * np.random.default_rng(8).standard_normal(300)).astype(np.float32)
    logits[100:105] = logits.max() + 1  # ties: the lower id comes first
    cases: list[dict[str, object]] = []
    # Candidates that fill a block, or a small part of it; a round over what blocks left that is full, or not.
    for block, params in (
        (128, SamplingParams(seed=5)),
        (32, SamplingParams(seed=6, temperature=0.1, top_p=1, min_p=0, top_k=7)),
        (64, SamplingParams(seed=7, temperature=3.0, top_p=0.5, top_k=16)),
    ):
        ids, values = sampling.largest(torch.from_numpy(logits)[None], params.top_k, block)
        settings = sampling.settings(params.top_p, params.min_p, params.temperature, "cpu")
        sampler, random = Sampler(params), np.random.Generator(np.random.PCG64(params.seed))
        right_ids, right = sampler.probabilities(logits)
        n, ok = len(right), True
        for _ in range(4):
            chosen, shares = sampling.draw(ids, values, settings, torch.from_numpy(random.random(1)))
            ok &= int(chosen[0]) == sampler.sample(logits)
        ok &= ids[0, :n].tolist() == right_ids.tolist() and not shares[0, n:].any()
        # Double precision on both sides: exp is good to some units in the last place.
        ok &= np.allclose(shares[0, :n], right, rtol=1e-13, atol=0)
        cases.append({"what": f"draw {params}", "ok": bool(ok), "reason": f"{ids[0, :n]} {shares}"})
    ids, _ = sampling.largest(torch.from_numpy(logits)[None], 1)
    cases.append({"what": "greedy", "ok": ids.tolist() == [[100]], "reason": f"{ids}"})
    for bad in (np.nan, -np.nan, np.inf, -np.inf):  # of which a NaN and minus infinity are the smallest as they are
        for top_k in (1, 7):
            wrong = logits.copy()
            wrong[250] = bad
            ids, values = sampling.largest(torch.from_numpy(wrong)[None], top_k, finite=True)
            chosen, _ = sampling.draw(
                ids, values, sampling.settings(1, 0, 1, "cpu"), torch.zeros(1, dtype=torch.float64)
            )
            cases.append({"what": f"draw of {bad}, {top_k}", "ok": chosen.tolist() == [-251], "reason": f"{chosen}"})
    return cases


def distribution() -> dict[str, object]:
    """Counts of many draws are those of the probabilities: Pearson's statistic is below what it exceeds once in a
    million, were it a matter of chance (the seed is fixed); and the same numbers draw the same."""
    logits = (2 * np.random.default_rng(9).standard_normal(200)).astype(np.float32)
    params, n = SamplingParams(temperature=0.9, top_k=12, top_p=0.97, min_p=0.05, seed=11), 300
    ids, values = sampling.largest(torch.from_numpy(logits)[None], params.top_k, finite=True)
    rows = [t.expand(n, -1).contiguous() for t in (ids, values)]
    settings = sampling.settings(params.top_p, params.min_p, params.temperature, "cpu")
    uniform = torch.from_numpy(np.random.default_rng(params.seed).random(n))
    chosen, _ = sampling.draw(*rows, settings, uniform)
    again, _ = sampling.draw(rows[0][:20], rows[1][:20], settings, uniform[:20])
    right_ids, right = Sampler(params).probabilities(logits)
    counts = np.array([int((chosen == int(i)).sum()) for i in right_ids])
    expected = n * right
    statistic = float(((counts - expected) ** 2 / expected).sum())
    bound = float(stats.chi2.ppf(1 - 1e-6, len(right) - 1))
    # Below five expected the statistic has another distribution.
    ok = counts.sum() == n and expected.min() >= 5 and len(right) > 3 and statistic < bound
    ok &= torch.equal(again, chosen[:20])
    return {"what": "distribution", "ok": bool(ok), "reason": f"{statistic} of {bound}, {counts} of {expected}"}


def model(architecture: str) -> dict[str, object]:
    """A model of one layer under ``triton`` rules on an alias says what it says under ``torch`` rules."""
    gpu = Device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        synthesize(make_tiny(architecture, "F16", n_layers=1), path, seed=4)
        names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
        torches, ours = (
            load_model(
                path, {n: Placement(gpu, item, gpu, item) for n in names}, kv="f16", context=40, threads=1,
                alias={gpu: CPU},
            )
            for item in ("torch", "triton")
        )  # fmt: skip
        used = {call.implementation for call in ours.decode_calls if call.op in ("attention", "mla_attention")}
        right, found = (session.prefill([5, 17, 3, 9, 19, 29]).copy() for session in (torches, ours))
        off, same = [], []
        for _ in range(4):
            off.append(float(np.linalg.norm(found - right) / np.linalg.norm(right)))
            same.append(int(right.argmax()) == int(found.argmax()))
            right, found = (session.decode(int(right.argmax())).copy() for session in (torches, ours))
    # The same products on both sides; queries and weights are rounded to float16 in a part of the residual stream.
    ok = all(same) and max(off) < 2**-10 and used == {"triton"}
    return {"what": f"model {architecture}", "ok": ok, "reason": f"{off} {same} {used}"}


def residual() -> dict[str, object]:
    rng = np.random.default_rng(2)
    x, y, w = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((3, 96), (3, 96), (96,)))
    total, normed = small_ops.rms_norm(x, w, 1e-6, y)
    right = torch.nn.functional.rms_norm((x + y).double(), (96,), w.double(), 1e-6)
    # The operation's tolerance: a sum of 96 squares, halved by the root, and some roundings.
    ok = torch.equal(total, x + y) and bool(
        ((normed - right).abs() <= (3 * 96**0.5 + 16) * 2.0**-24 * right.abs()).all()
    )
    return {"what": "rms_norm + residual", "ok": ok, "reason": ""}


if __name__ == "__main__":
    in_float32()
    torch.use_deterministic_algorithms(True)  # fills what is not written with NaN
    cases = [small(key, dict(attrs)) for key, attrs in SMALL]
    # The first position, a block's edges, more blocks than splits; a cache with room to spare, and one without.
    for kv, position in (("f16", 0), ("bf16", 31), ("f16", 32), ("f16", 255)):
        cases.append(attention(LATENT.format(5, 64, 16, kv, 1, position + 1, 0), [(0, position, 1)], 300))
    cases.append(attention(LATENT.format(20, 96, 24, "bf16", 1, 40, 0), [(0, 39, 1)], 40))
    for kv, position in (("bf16", 0), ("f16", 63), ("bf16", 64), ("f16", 200)):
        sinks = position == 200
        cases.append(attention(HEADS.format(6, 2, 40, kv, 1, position + 1, 0), [(0, position, 1)], 201, sinks))
    # Heads that take two blocks; sequences side by side, one with two tokens.
    cases.append(attention(LATENT.format(34, 32, 16, "f16", 3, 41, 0), [(1, 40, 1), (0, 3, 2)], 44))
    cases.append(attention(HEADS.format(34, 1, 32, "bf16", 3, 41, 0), [(1, 40, 1), (0, 3, 2)], 44))
    # Around the ring: what is seen lies on both sides of its end; rings of one page and of several, over many laps.
    cases.append(attention(HEADS.format(4, 2, 32, "bf16", 1, 181, 40), [(0, 180, 1)], 48, True))
    cases.append(attention(LATENT.format(4, 32, 16, "f16", 2, 101, 30), [(0, 99, 2)], 33))
    cases.append(attention(LATENT.format(4, 32, 16, "bf16", 1, 201, 40), [(0, 200, 1)], 40))
    cases.append(attention(HEADS.format(4, 2, 32, "f16", 2, 1001, 130), [(0, 999, 2)], 131))
    # Around the borders of pages, of sequences side by side; forks that have gone apart: they share what came before.
    for kv, (heads, positions) in {"f16": (4, (62, 63, 64)), "bf16": (3, (126, 127, 129))}.items():
        spans = [(s, position, 1) for s, position in enumerate(positions)]
        cases.append(attention(LATENT.format(heads, 32, 16, kv, 3, positions[-1] + 1, 0), spans, 193))
        cases.append(attention(HEADS.format(2 * heads, 2, 32, kv, 3, positions[-1] + 1, 0), spans, 130))
    spans = [(0, 133, 1), (1, 140, 1)]
    cases.append(attention(LATENT.format(4, 32, 16, "f16", 2, 141, 0), spans, 150, shared=128))
    cases.append(attention(HEADS.format(4, 2, 32, "bf16", 2, 141, 0), spans, 150, shared=64))
    # Queries beyond what float16 holds.
    cases.append(attention(LATENT.format(4, 32, 16, "f16", 1, 10, 0), [(0, 9, 1)], 10, scale=1e6))
    torch.use_deterministic_algorithms(False)
    print(json.dumps([*cases, *draws(), distribution(), residual(), model("llama"), model("deepseek2")]))
