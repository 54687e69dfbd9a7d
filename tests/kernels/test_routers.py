"""Every routing that models have, against transformers' own routers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kbench.kernels.reference import route

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

EXPERTS, TOP_K, WIDTH, TOKENS = 16, 3, 24, 40
CONFIG = SimpleNamespace(
    num_experts_per_tok=TOP_K, num_experts=EXPERTS, num_local_experts=EXPERTS, n_routed_experts=EXPERTS,
    hidden_size=WIDTH, router_jitter_noise=0.0, norm_topk_prob=True, n_group=1, topk_group=1, routed_scaling_factor=2.5,
)  # fmt: skip


def _transformers_router(path: str, changes: dict[str, Any], weight: np.ndarray, bias: np.ndarray | None) -> Any:
    module, _, name = path.rpartition(".")
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    router = getattr(modeling, name)(SimpleNamespace(**{**vars(CONFIG), **changes}))
    router.weight.data = torch.from_numpy(weight)
    if bias is not None:
        router.e_score_correction_bias = torch.from_numpy(bias)
    elif hasattr(router, "bias"):
        router.bias.data = torch.from_numpy(np.linspace(-1, 1, EXPERTS, dtype=np.float32))
    return router


@pytest.mark.parametrize(
    ("path", "changes", "attrs", "biased"),
    [
        ("mixtral.MixtralTopKRouter", {}, {"norm_topk_prob": 1}, False),
        ("qwen2_moe.Qwen2MoeTopKRouter", {"norm_topk_prob": False}, {}, False),
        ("qwen3_moe.Qwen3MoeTopKRouter", {}, {"norm_topk_prob": 1}, False),
        # The softmax of the chosen logits is the softmax of all, renormalised.
        ("gpt_oss.GptOssTopKRouter", {}, {"norm_topk_prob": 1}, False),
        ("glm4_moe.Glm4MoeTopkRouter", {}, {"scoring": "sigmoid", "norm_topk_prob": 1, "routed_scaling": 2.5}, True),
    ],
)
def test_routes_are_transformers(path: str, changes: dict[str, Any], attrs: dict[str, Any], biased: bool) -> None:
    rng = np.random.default_rng(3)
    weight, x = (rng.standard_normal((n, WIDTH)).astype(np.float32) for n in (EXPERTS, TOKENS))
    bias = rng.uniform(-0.3, 0.3, EXPERTS).astype(np.float32) if biased else None
    router = _transformers_router(path, changes, weight, bias)
    with torch.no_grad():
        answer = [t.numpy() for t in router(torch.from_numpy(x))]
    _, scores, chosen = answer
    logits = x @ weight.T
    if hasattr(router, "bias"):
        logits = logits + router.bias.detach().numpy()
    ids, weights = route(logits, TOP_K, attrs, bias)
    for token in range(TOKENS):
        mine = dict(zip(ids[token].tolist(), weights[token].tolist(), strict=True))
        assert mine == pytest.approx(dict(zip(chosen[token].tolist(), scores[token].tolist(), strict=True)), rel=1e-5)
