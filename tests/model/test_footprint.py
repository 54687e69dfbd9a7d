"""Figures that are published, or that follow by hand from the shapes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_models import make_tiny

from kbench.core import Phase, UserError
from kbench.model import describe_gguf, embedded, footprint, kv_bytes_per_token, open_gguf, total_work


def test_intensities_of_deepseek_v2() -> None:
    """KTransformers' figures: 512 for MLA (483.6 with the RoPE dimensions), 0.075 for routed experts."""
    result = footprint(embedded("deepseek-v2-chat"), context=4096)
    mla, experts = result.intensities
    assert mla.nominal == 512
    assert mla.exact == pytest.approx(483.6, abs=0.05)
    assert mla.flops_per_byte == pytest.approx(241.8, abs=0.05)
    assert experts.nominal == experts.exact == pytest.approx(0.075)
    # The same out of the calls that the planner prices.
    calls = {(group.module, group.op): group.work for group in result.phases[Phase.DECODE]}
    attention = calls["layers.*.self_attn", "mla_attention"]
    assert attention.ai_resident == pytest.approx(mla.exact)
    assert attention.flops / attention.resident_bytes == pytest.approx(241.8, abs=0.05)
    assert calls["layers.*.mlp.experts", "moe_experts"].ai_resident == pytest.approx(0.075)
    assert calls["lm_head", "linear"].ai_resident == 2


@pytest.mark.parametrize(
    ("name", "nominal", "experts"), [("deepseek-v2-lite-chat", 64, 0.1875), ("deepseek-v3", 512, 0.0625)]
)
def test_intensities_of_others(name: str, nominal: float, experts: float) -> None:
    found = footprint(embedded(name)).intensities
    assert (found[0].nominal, found[1].exact) == (nominal, experts)


def test_a_window_bounds_what_is_cached() -> None:
    """gpt-oss-20b: 24 layers of 8 heads of 64, keys and values, every second of them with a window of 128 tokens."""
    token = 2 * 8 * 64 * 2
    for context, windowed in ((100, 100), (4096, 128)):
        result = footprint(embedded("gpt-oss-20b"), context=context, prompt_tokens=1)
        assert result.kv_bytes_per_token == 24 * token
        assert result.cached_bytes == 12 * token * (context + windowed)
    assert footprint(embedded("deepseek-v2-chat"), context=10, prompt_tokens=1).cached_bytes == 10 * 69_120


def test_bytes_read_per_token() -> None:
    result = footprint(embedded("deepseek-v2-chat"))
    assert result.read_bytes_per_token / 1e9 == pytest.approx(12.519, abs=5e-4)
    routed = next(row for row in result.classes if row.kind == "routed experts")
    assert routed.n_bytes * 6 / 160 / 1e9 == pytest.approx(5.051, abs=5e-4)
    assert result.active_params / 1e9 == pytest.approx(21.38, abs=5e-3)  # published: 21 B
    assert footprint(embedded("deepseek-v3")).active_params / 1e9 == pytest.approx(37.55, abs=5e-3)


def test_a_tied_embedding_is_read_as_the_head(smollm2_path: Path) -> None:
    m = describe_gguf(open_gguf(smollm2_path))
    assert footprint(m).read_bytes_per_token == m.n_bytes


def test_cache_bytes() -> None:
    v2 = embedded("deepseek-v2-chat")
    assert kv_bytes_per_token(v2) == 69_120
    assert kv_bytes_per_token(v2, "f32") == 138_240
    assert kv_bytes_per_token(make_tiny()) == 3 * 2 * 2 * 64 * 2


def test_groups_add_up_to_the_model() -> None:
    m = make_tiny("deepseek2")
    result = footprint(m, prompt_tokens=9)
    assert sum(row.n_bytes for row in result.classes) == sum(row.n_bytes for row in result.modules) == m.n_bytes
    assert sum(row.n_params for row in result.classes) == m.n_params
    decode = result.phases[Phase.DECODE]
    # All matrices but two: the embedding gives one row; the k half of kv_b is stored anew for decode. In float32
    # nothing is.
    exact = footprint(dataclasses.replace(make_tiny("deepseek2", "F32")))
    weights = total_work(exact.phases[Phase.DECODE]).weight_bytes
    small = sum(t.n_bytes for t in exact.descriptor.tensors if len(t.shape) == 1)
    assert weights == exact.read_bytes_per_token - small
    assert [group.count for group in decode if group.op == "mla_attention"] == [3]
    assert all(row.count == 2 for row in result.modules if row.module.startswith("layers.*.mlp.shared"))


def test_dense_and_moe_layers_are_told_apart() -> None:
    rows = {(row.module, row.class_name): row.count for row in footprint(make_tiny("deepseek2")).modules}
    assert rows["layers.*.mlp", "MLP"] == 1
    assert rows["layers.*.mlp", "MoE"] == 2


def test_values_that_differ_are_joined() -> None:
    result = footprint(embedded("deepseek-v2-chat"))
    experts = next(group for group in result.phases[Phase.DECODE] if group.op == "moe_experts")
    assert experts.problem["quant_down"] == "Q6_K|Q4_K"
    assert experts.problem["quant_up"] == "Q4_K"


def test_senseless_requests() -> None:
    with pytest.raises(UserError):
        footprint(make_tiny(), prompt_tokens=0)
    with pytest.raises(UserError):
        footprint(make_tiny(), kv="q3")
