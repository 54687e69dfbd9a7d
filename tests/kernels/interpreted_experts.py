"""Checks the interpreted kernels of routing and of routed experts; prints a JSON list of cases. Needs
TRITON_INTERPRET=1.

Everything that the kernels write to lies between guards, and is poisoned: what is read before it is written shows as
NaN or as an index far outside, and what is written past an end as a guard that changed. Whatever would wait for a GPU,
and so could not be captured in a graph, fails.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kbench.core import CPU, Device, GpuExperts, Placement, Problem
from kbench.engine import load_model
from kbench.kernels import Example, check, example, expert_subset, implementation, pairs_here
from kbench.kernels.reference import clamp_of
from kbench.kernels.reference import route as defined_route
from kbench.kernels.triton.device import TritonDevice
from kbench.kernels.triton.expert_stack import expert_layer, expert_slots
from kbench.kernels.triton.experts import ExpertTile, most_tiles, route, run_experts, sort_pairs
from kbench.model import Moe, build_tree, describe_gguf, open_gguf, synthesize

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script of its own finds its neighbours' modules itself
from float32_torch import in_float32
from tiny_models import make_tiny

GUARD = 64
_EMPTY = torch.empty


class _NoWaiting(TorchDispatchMode):
    """Refuses operations whose results the host must see to go on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "unique", "masked_select")), name
        return func(*args, **(kwargs or {}))


@contextmanager
def guarded() -> Iterator[None]:
    """``torch.empty`` poisons, and puts guards around."""
    made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def poisoned(*shape: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        count = int(np.prod(sizes))
        poison = float("nan") if dtype.is_floating_point else -(1 << 30)
        whole = torch.full((count + 2 * GUARD,), poison, dtype=dtype)
        made.append((whole[:GUARD], whole[GUARD + count :]))
        return whole[GUARD : GUARD + count].view(sizes)

    torch.empty = poisoned  # type: ignore[assignment]
    try:
        with _NoWaiting():
            yield
    finally:
        torch.empty = _EMPTY
    for guard in (guard for pair in made for guard in pair):
        changed = ~guard.isnan() if guard.dtype.is_floating_point else guard != -(1 << 30)
        assert not changed.any(), "written outside"


def experts_problem(mix: str, tokens: int, top_k: int, experts: int, n: int, k: int) -> Problem:
    gate, up, down = mix.split(",")
    return Problem.make(
        "moe_experts", experts=experts, top_k=top_k, n=n, k=k, quant_gate=gate, quant_up=up, quant_down=down,
        tokens=tokens,
    )  # fmt: skip


def judge(name: str, made: Example, resident: Sequence[int] = (), tile: ExpertTile | None = None) -> dict[str, object]:
    """``run_experts`` on ``made``, against the float64 definition where experts that are not here weigh nothing."""
    experts = made.call.problem.integer("experts")
    weights = [expert_subset(weight, resident) if resident else weight for weight in made.weights]
    layer = expert_layer(weights, experts, "cpu")
    x, ids, scores = made.inputs
    with guarded():
        y = run_experts(*(torch.from_numpy(a) for a in (x, ids, scores)), layer, clamp_of(made.call), tile)
    here = np.isin(ids, resident or np.arange(experts))
    few = tile.block_m == 1 if tile else len(x) <= 8
    inputs = (x, ids, np.where(here, scores, 0).astype(np.float32))
    found = check(made.call, made.weights, inputs, made.state, [y.numpy()], "f32" if few else "f16")
    return {"name": name, "ok": found.ok, "reason": found.reason, "worst": found.worst}


def with_ids(made: Example, ids: np.ndarray) -> Example:
    return dataclasses.replace(made, inputs=(made.inputs[0], ids.astype(np.int32), made.inputs[2]))


def experts() -> Iterator[dict[str, object]]:
    rng = np.random.default_rng(3)
    # Types of every kind of plane, gate and up alike or not; columns that fill no chunk, rows that fill no tile.
    mixes = (
        ("Q4_0,Q4_0,Q8_0", 96, 160), ("Q5_1,Q8_0,Q4_1", 32, 96), ("MXFP4,IQ4_NL,Q5_0", 64, 64),
        ("Q4_K,Q6_K,IQ4_XS", 256, 256),
    )  # fmt: skip
    for mix, n, k in mixes:
        # Whatever is wide is fast to interpret.
        for tokens, tile in ((1, ExpertTile(1, 128, 128)), (9, ExpertTile(16, 128, 128))):
            made = example(experts_problem(mix, tokens, 2, 3, n, k), rng)
            yield judge(f"{mix} {tokens} tokens", made, (), None if k == 96 else tile)
    # MXFP4's powers of two, some beyond float16 in a later expert only.
    made = example(experts_problem("MXFP4,MXFP4,MXFP4", 1, 2, 2, 32, 32), rng)
    gate = made.weights[0].raw.copy()
    blocks = gate.reshape(2, -1, 17)
    blocks[1, :, 0], blocks[0, 0, 0] = 96, 128  # 2^-32 is no float16
    gate = dataclasses.replace(made.weights[0], raw=gate)
    yield judge("MXFP4 of two ranges", dataclasses.replace(made, weights=(gate, *made.weights[1:])))
    gpt = {"activation": "clamped_swiglu", "alpha": 1.702, "limit": 0.8}
    for tokens, resident in ((2, ()), (2, (3, 1)), (9, ()), (9, (2, 1))):
        made = example(experts_problem("Q4_0,Q4_0,Q4_0", tokens, 2, 4, 32, 32), rng, attrs=gpt, bias=True)
        yield judge(f"gpt-oss {tokens} tokens, here: {resident}", made, resident)
    yield from routes(rng)


def routes(rng: np.random.Generator) -> Iterator[dict[str, object]]:
    """Whatever routing may come to, in tiles of every kind."""
    few, many = ExpertTile(1, 64, 64), ExpertTile(16, 64, 64)
    shares: dict[str, tuple[int, np.ndarray]] = {
        "all to one": (5, np.full((20, 1), 3)),
        "none, one and many": (5, np.stack([np.full(20, 3), np.where(np.arange(20) == 7, 1, 2)], -1)),
        "every expert": (4, np.argsort(rng.random((10, 4)), -1)),
        "one token": (5, np.array([[4, 1]])),
    }
    for name, (count, ids) in shares.items():
        made = example(experts_problem("Q4_0,Q4_0,Q4_0", len(ids), ids.shape[1], count, 32, 64), rng)
        made = with_ids(made, ids)
        some = (4, 3, 1) if count == 5 else (2,)
        for resident in ((), some, (0,)) if name != "all to one" else ((),):
            tiles = (many,) if len(ids) > 1 else (few,) if resident else (few, many)
            for tile in tiles:
                yield judge(f"{name}, here: {resident} {tile.block_m}", made, resident, tile)
    # Nothing is read for ids that no expert has.
    made = example(experts_problem("Q4_0,Q4_0,Q4_0", 3, 2, 4, 32, 64), rng)
    wrong = np.array([[0, 1 << 30], [-5, 3], [2, 4]])
    layer = expert_layer(made.weights, 4, "cpu")
    real = (wrong >= 0) & (wrong < 4)
    right = with_ids(made, np.where(real, wrong, (wrong[:, ::-1] + 1) % 4))
    scores = np.where(real, made.inputs[2], 0).astype(np.float32)
    for tile in (few, many):
        tensors = (torch.from_numpy(a) for a in (made.inputs[0], wrong.astype(np.int32), made.inputs[2]))
        with guarded():
            y = run_experts(*tensors, layer, None, tile)
        inputs = (*right.inputs[:2], scores)
        found = check(made.call, made.weights, inputs, made.state, [y.numpy()], "f32" if tile is few else "f16")
        yield {"name": f"ids without an expert {tile.block_m}", "ok": found.ok, "reason": found.reason}


def split() -> Iterator[dict[str, object]]:
    """Some experts on a GPU, the others on the host: together the layer."""
    rng = np.random.default_rng(11)
    for tokens, there in ((1, (2, 0)), (3, (1,)), (9, (3, 1, 2))):
        problem = experts_problem("Q4_0,Q5_0,Q8_0", tokens, 2, 4, 32, 64)
        made = example(problem, rng, bias=True)
        x, ids, scores = made.inputs
        layer = expert_layer([expert_subset(weight, there) for weight in made.weights], 4, "cpu")
        with guarded():
            y = run_experts(*(torch.from_numpy(a) for a in made.inputs), layer).numpy()
        here = [expert for expert in range(4) if expert not in there]
        cold = problem.replace(experts=len(here), top_k=2)
        item, call = implementation("torch"), dataclasses.replace(made.call, problem=cold)
        prepared = item.prepare(cold, [expert_subset(weight, here) for weight in made.weights])
        inputs = (x, *pairs_here(here, ids, scores))  # type: ignore[arg-type]
        y = y + item.run(call, prepared, inputs, made.state, 1)[0]
        found = check(made.call, made.weights, made.inputs, made.state, [y], "f32" if tokens <= 8 else "f16")
        yield {"name": f"split, {tokens} tokens", "ok": found.ok, "reason": found.reason}


def orders() -> Iterator[dict[str, object]]:
    """Sorted as numpy sorts; each pair that is here in one tile of its slot."""
    rng = np.random.default_rng(5)
    for tokens, top_k, experts, resident, block_m in (
        (9, 2, 3, (), 16), (70, 4, 160, (), 16), (150, 3, 31, (30, 2, 5), 32), (33, 4, 8, (6,), 16),
        (300, 1, 2, (1,), 64),
    ):  # fmt: skip
        ids = rng.integers(0, experts, (tokens, top_k)).astype(np.int32)
        slots = expert_slots(experts, resident, "cpu")
        n_slots = len(resident) or experts
        with guarded():
            found = sort_pairs(torch.from_numpy(ids), slots, n_slots, block_m)
        of_pair = slots.numpy()[ids.reshape(-1)]
        of_pair = np.where(of_pair < 0, n_slots, of_pair)
        right = np.argsort(of_pair, kind="stable")
        count = int(found.n_tiles)
        tiles = found.tiles.numpy()[:, :count]
        covered = [p for slot, begin, end in tiles.T.tolist() for p in range(begin, end) if of_pair[right[p]] == slot]
        present = int((of_pair < n_slots).sum())
        begun = len(set(of_pair[of_pair < n_slots].tolist()))
        wasted = sum(block_m - (end - begin) for _, begin, end in tiles.T.tolist())
        reasons = [
            reason
            for ok, reason in (
                (np.array_equal(found.order.numpy(), right), "order"),
                (covered == list(range(present)), "tiles leave pairs out, or mix slots"),
                (int(found.n_present) == present, "present"),
                (count <= most_tiles(ids.size, n_slots, block_m), "more tiles than the bound"),
                (wasted < max(1, begun) * block_m, "more waste than a tile each"),
            )
            if not ok
        ]
        yield {"name": f"order {tokens} {experts} {resident}", "ok": not reasons, "reason": ", ".join(reasons)}


# Routers as models have them: scoring, groups, correction.
V2: dict[str, Any] = {"scoring": "softmax", "n_group": 8, "topk_group": 3, "routed_scaling": 16.0}
V3: dict[str, Any] = {
    "scoring": "sigmoid", "n_group": 8, "topk_group": 4, "norm_topk_prob": 1, "routed_scaling": 2.5,
}  # fmt: skip
ROUTERS: tuple[tuple[str, dict[str, Any], bool, int, int], ...] = (
    ("deepseek-v2", V2, False, 160, 6),
    ("deepseek-v2-lite", {"scoring": "softmax"}, False, 64, 6),
    ("deepseek-v3", V3, True, 256, 8),
    ("mixtral", {"scoring": "softmax", "norm_topk_prob": 1}, False, 8, 2),
    ("glm4", {"scoring": "sigmoid", "norm_topk_prob": 1, "routed_scaling": 2.5}, True, 33, 5),
    ("groups of five", {**V3, "n_group": 3, "topk_group": 2}, True, 15, 4),
    ("groups of one", {**V3, "n_group": 6, "topk_group": 5}, True, 6, 3),
    ("fewer than wanted in the groups", {**V2, "n_group": 5, "topk_group": 1}, False, 20, 6),
    ("all of them", {"scoring": "softmax"}, False, 5, 5),
)


def routers() -> Iterator[dict[str, object]]:
    rng = np.random.default_rng(7)
    for name, attrs, biased, experts, top_k in ROUTERS:
        logits = rng.standard_normal((5, experts)).astype(np.float32)
        logits[0] = 0.25  # ties
        logits[1, ::2] = logits[1, 1]
        bias = rng.uniform(-0.3, 0.3, experts).astype(np.float32) if biased else None
        with guarded():
            ids, weights = route(
                torch.from_numpy(logits), top_k, attrs, None if bias is None else torch.from_numpy(bias)
            )
        right_ids, right = defined_route(logits.astype(np.float64), top_k, attrs, bias)
        same = np.array_equal(ids.numpy(), right_ids)
        # exp and a sum of up to 256 positive numbers, in float32.
        off = float(np.abs(weights.numpy() / right - 1).max())
        yield {"name": name, "ok": same and off < 64 * 2.0**-24, "reason": f"{ids[:2]} {right_ids[:2]} off by {off}"}
    broken = np.full((2, 20), np.nan, np.float32)
    broken[1, 3] = 1.0
    for attrs in ({"scoring": "softmax"}, {**V3, "n_group": 4, "topk_group": 2}):
        with guarded():
            ids, _ = route(torch.from_numpy(broken), 6, attrs)
        ok = all(len(set(row)) == 6 and min(row) >= 0 and max(row) < 20 for row in ids.tolist())
        yield {"name": f"logits that are no numbers {attrs['scoring']}", "ok": ok, "reason": str(ids)}


def device() -> Iterator[dict[str, object]]:
    """Through the implementation: types without planes go to torch; the router's biases are told apart."""
    item = TritonDevice("cpu")
    cases: list[tuple[Problem, dict[str, Any], bool]] = [
        (experts_problem("Q4_0,Q8_0,Q4_0", 2, 2, 3, 32, 32), {}, False),
        (experts_problem("Q4_0,Q8_0,F16", 2, 2, 3, 32, 32), {}, False),
        (Problem.make("moe_router", quant="F32", experts=16, top_k=3, k=24, tokens=5), {}, False),
        (Problem.make("moe_router", quant="F32", experts=16, top_k=3, k=24, tokens=5), {"logit_bias": 1}, True),
        (Problem.make("moe_router", quant="F16", experts=16, top_k=3, k=24, tokens=5), {"scoring": "sigmoid"}, True),
    ]
    for problem, attrs, bias in cases:
        made = example(problem, np.random.default_rng(1), attrs=attrs, bias=bias)
        inputs = [torch.from_numpy(a) for a in made.inputs]
        y = item.compute(made.call, item.prepare(problem, made.weights), inputs, made.state)
        outputs = [t.numpy() for t in y]
        found = check(made.call, made.weights, made.inputs, made.state, outputs, item.accuracy(problem))
        yield {"name": f"{problem.key} {attrs}", "ok": found.ok, "reason": found.reason}


def model() -> Iterator[dict[str, object]]:
    """DeepSeek-V3's kind of layer, its router and experts under ``triton`` rules on an alias: the logits of one
    device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        moe = Moe(4, 2, 64, 1, 1, "sigmoid", 2, 1, True, 2.5)
        synthesize(make_tiny("deepseek-v3", "Q4_0", n_layers=2, moe=moe), path, seed=4)
        names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
        gpu = Device("cuda", 0)
        here = {n: Placement(CPU, "reference", CPU, "reference") for n in names}
        there = {n: Placement(gpu, "triton", gpu, "triton") for n in names if n.endswith((".mlp.gate", ".mlp.experts"))}
        assert len(there) == 2
        options: dict[str, Any] = {"kv": "f32", "context": 32, "threads": 1}
        sessions = load_model(path, here, **options), load_model(path, here | there, alias={gpu: CPU}, **options)
        # The CPU has the experts, but for two that lie on the GPU.
        apart = Placement(CPU, "reference", CPU, "reference", gpu_experts=GpuExperts((1, 2), gpu, "triton"))
        places = here | {n: apart for n in names if n.endswith(".mlp.experts")}
        split = load_model(path, places, alias={gpu: CPU}, **options)
        assert not sessions[1].report.stand_ins and not split.report.stand_ins, "interpreted, not replaced"
        # Float32: 1e-5, as implementations are held to layer by layer. Float16: each of three products in a row adds
        # 2^-11 * sqrt(2 / 3) of its norm, independently: 7e-4, and a safety factor of 3.
        for tokens, most in (([5, 17], 1e-5), ([9, 19, 29, 40, 41, 42, 50, 51, 52], 2e-3)):
            right, found, parts = (session.prefill(tokens).copy() for session in (*sessions, split))
            for name, made in (("model", found), ("model with some experts there", parts)):
                off = float(np.linalg.norm(made - right) / np.linalg.norm(right))
                yield {"name": f"{name}, {len(tokens)} tokens", "ok": off < most, "reason": f"off by {off}"}


if __name__ == "__main__":
    in_float32()
    parts: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
        "experts": experts, "split": split, "orders": orders, "routers": routers, "device": device, "model": model,
    }  # fmt: skip
    asked = sys.argv[1:] or list(parts)
    print(json.dumps({name: list(parts[name]()) for name in asked}))
