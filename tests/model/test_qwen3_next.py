"""Qwen3-Next, which can be planned but not run: tensors, tree, calls, cache."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from kbench.core import Phase, Unsupported, work
from kbench.model import (
    build_tree,
    describe_gguf,
    embedded,
    first_layers,
    kv_bytes_per_token,
    lower,
    open_gguf,
    synthesize,
)

MODEL = embedded("qwen3-next")


def test_tensors_are_those_of_a_published_file() -> None:
    """A loader of Qwen3-Next-80B-A3B-Instruct Q4_K_M logs (lmstudio-bug-tracker issue 1266): 807 tensors, 313 f32,
    48 f16, 391 q4_K, 55 q6_K, 45.08 GiB. The f16 ones are gates of shared experts, of one row: F32 here."""
    assert Counter(t.quant for t in MODEL.tensors) == {"F32": 313 + 48, "Q4_K": 391, "Q6_K": 55}
    assert MODEL.file_bytes / 2**30 == pytest.approx(45.08, abs=0.005)
    assert MODEL.n_params / 1e9 == pytest.approx(80, rel=0.01)


def test_layers_attend_in_turn() -> None:
    full = [layer for layer in range(48) if MODEL.attends(layer)]
    assert full == list(range(3, 48, 4))
    assert kv_bytes_per_token(MODEL, "bf16") == 12 * 2 * 2 * 256 * 2
    calls = lower(MODEL, {}, Phase.DECODE, 1, 4096, resolve=lambda problem, device: "none")
    ops = Counter(call.op for call in calls)
    assert (ops["delta_rule"], ops["attention"], ops["sigmoid_mul"], ops["moe_experts"]) == (36, 12, 12, 48)
    state = next(call for call in calls if call.op == "delta_rule")
    assert work(state.problem).resident_bytes == 4 * (32 * 128 * 128 + 3 * 8192)
    # Every matrix of a linear layer is read once a token.
    layer = [call for call in calls if call.module.startswith("model.layers.0.linear_attn") and call.op == "linear"]
    stored = [t.n_bytes for t in MODEL.tensors if t.name.startswith("blk.0.ssm_") and t.quant == "Q4_K"]
    assert sum(work(call.problem).weight_bytes for call in layer) == sum(stored)


def test_the_tree_has_transformers_names() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.Qwen3NextConfig(
        num_hidden_layers=4, hidden_size=64, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        vocab_size=64, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = {name for name, _ in transformers.Qwen3NextForCausalLM(config).named_modules()}
    ours = {module.name for module in build_tree(first_layers(MODEL, 4)).walk()}
    # Theirs has a part for each expert and activation, and one rotary embedding for all layers.
    for layer in (0, 3):
        own = {name for name in ours if name.startswith(f"model.layers.{layer}.") and not name.endswith("rotary_emb")}
        assert own <= theirs


def test_a_synthetic_file_is_described_and_not_run(tmp_path: Path) -> None:
    from kbench.engine import load_model

    moe = dataclasses.replace(MODEL.moe, experts=4, top_k=2, n=32, shared_n=32)  # type: ignore[type-var]
    small = dataclasses.replace(MODEL, vocab=300, moe=moe, context_length=512)
    synthesize(first_layers(small, 4), tmp_path / "m.gguf")
    found = describe_gguf(open_gguf(tmp_path / "m.gguf"))
    assert (found.delta, found.moe, found.rotary, found.kv_heads) == (MODEL.delta, moe, 64, 2)
    with pytest.raises(Unsupported, match="qwen3next"):
        load_model(tmp_path / "m.gguf", context=16)
