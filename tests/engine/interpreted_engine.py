"""Whole models on Triton's kernels, interpreted, on an alias of the CPU; prints a JSON list of cases. Needs
TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from kbench.core import CPU, Device, Placement
from kbench.engine import GREEDY, Generation, SamplingParams, Session, generate, load_model
from kbench.kernels.triton import small_ops
from kbench.kernels.triton.step_device import StepDevice
from kbench.model import build_tree, describe_gguf, open_gguf, synthesize

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script of its own finds its neighbours' modules itself
from tiny_models import make_tiny

GPU = Device("cuda", 0)
LAYERS = 2
PROMPT = [5, 17, 3]
N_TOKENS = 3


def load(path: Path, **options: Any) -> Session:
    names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
    place = {name: Placement(GPU, "triton", GPU, "triton") for name in names}
    return load_model(path, place, **{"kv": "f16", "context": 40, "threads": 1, "alias": {GPU: CPU}} | options)


def fusion(path: Path) -> dict[str, Any]:
    """Sums and norms at once give the same logits, bit for bit, with one launch less for each pair."""
    launches: Counter[str] = Counter()
    norm, add = small_ops.rms_norm, small_ops.add

    def counted_norm(*args: Any) -> Any:
        launches["norm"] += 1
        return norm(*args)

    def counted_add(*args: Any) -> Any:
        launches["add"] += 1
        return add(*args)

    small_ops.rms_norm, small_ops.add = counted_norm, counted_add
    ours = StepDevice.residual_norm
    found = []
    for does in (ours, lambda self, norm: None):
        StepDevice.residual_norm = does  # type: ignore[method-assign]
        session = load(path)
        launches.clear()
        logits = session.prefill(PROMPT)
        prefill = dict(launches)
        launches.clear()
        made = [logits, session.decode(9).copy()]
        found.append((made, prefill, dict(launches)))
    StepDevice.residual_norm = ours  # type: ignore[method-assign]
    small_ops.rms_norm, small_ops.add = norm, add
    (fused, *less), (apart, *more) = found
    pairs = 2 * LAYERS - 1
    same = all(np.array_equal(a, b) for a, b in zip(fused, apart, strict=True))
    counts = [(m["norm"], m["add"] - f["add"]) == (f["norm"], pairs) for f, m in zip(less, more, strict=True)]
    return {"what": "fusion", "ok": same and all(counts), "reason": f"same: {same}; launches {less} of {more}"}


def drawing(path: Path, graph: bool, params: SamplingParams) -> dict[str, Any]:
    """Tokens drawn on the device are the host's, and their ids are all that crosses."""
    session, plain = load(path, graph=graph), load(path, graph=graph)
    plain.draws = lambda params: False  # type: ignore[method-assign]
    found = []
    for one in (session, plain):
        list(generate(one, PROMPT, params, N_TOKENS, ignore_eos=True, result=(out := Generation())))
        found.append((out.ids, sum(moved.n_bytes for moved in one.traffic.moved.values())))
    (ids, n_bytes), (right, _) = found
    # The prompt's logits, and the other tokens.
    ok = session.draws(params) and ids == right and n_bytes == 4 * (session.descriptor.vocab + N_TOKENS - 1)
    return {"what": f"drawing {graph} {params}", "ok": ok, "reason": f"{ids} {right}, {n_bytes} bytes"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        two, one = Path(folder) / "two.gguf", Path(folder) / "one.gguf"
        synthesize(make_tiny("llama", "F16", n_layers=LAYERS), two, seed=4)
        synthesize(make_tiny("llama", "F16", n_layers=1), one, seed=5)
        hot = SamplingParams(temperature=1.7, top_k=30, top_p=0.9, min_p=0.01, seed=3)
        cases = [drawing(one, graph, params) for graph, params in ((True, hot), (False, GREEDY))]
        print(json.dumps([fusion(two), *cases]))
