"""The module tree against transformers' own models, and its tensors against the descriptor."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import Module
from kbench.model import ModelDescriptor, build_tree, embedded

TREES = {architecture: build_tree(make_tiny(architecture)) for architecture in ARCHITECTURES}


def _transformers_model(m: ModelDescriptor, model_type: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    fields: dict[str, Any] = {
        "hidden_size": m.d,
        "num_hidden_layers": m.n_layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "intermediate_size": m.ffn,
        "vocab_size": m.vocab,
    }
    if m.mla is not None and m.moe is not None:
        a, e = m.mla, m.moe
        fields |= {"num_key_value_heads": m.heads, "q_lora_rank": a.q_lora, "kv_lora_rank": a.kv_lora}
        fields |= {"qk_rope_head_dim": a.rope, "qk_nope_head_dim": a.nope, "v_head_dim": a.v}
        fields |= {"n_routed_experts": e.experts, "n_shared_experts": e.shared, "num_experts_per_tok": e.top_k}
        fields |= {"moe_intermediate_size": e.n, "first_k_dense_replace": e.first_dense}
    elif m.moe is not None:
        e = m.moe
        fields |= {"num_experts": e.experts, "num_local_experts": e.experts, "num_experts_per_tok": e.top_k}
        fields |= {"moe_intermediate_size": e.n, "shared_expert_intermediate_size": e.shared_width}
        fields |= {"n_routed_experts": e.experts, "n_shared_experts": e.shared, "first_k_dense_replace": e.first_dense}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("mixtral", "mixtral"),
        ("qwen2moe", "qwen2_moe"),
        ("qwen3moe", "qwen3_moe"),
        ("glm4moe", "glm4_moe"),
        ("gpt-oss", "gpt_oss"),
        ("deepseek2", "deepseek_v2"),
        ("deepseek-v3", "deepseek_v3"),
    ],
)
def test_names_and_classes_are_those_of_transformers(architecture: str, model_type: str) -> None:
    # rotary_emb moved from each attention to the model in newer versions; rule files know the former. act_fn has no
    # weights and no call of its own; a fused expert class keeps its activation there.
    def counts(name: str) -> bool:
        return not name.endswith((".rotary_emb", ".act_fn"))

    model = _transformers_model(make_tiny(architecture), model_type)
    # Mixtral's experts were called block_sparse_moe until transformers 5; rule files know them by that name.
    old = "block_sparse_moe" if architecture == "mixtral" else "mlp"
    theirs = {name.replace("mlp", old): type(module) for name, module in model.named_modules() if counts(name)}
    mine = {module.name: module for module in TREES[architecture].walk() if counts(module.name)}
    assert set(mine) == set(theirs)
    for name, kind in theirs.items():
        path = f"{kind.__module__}.{kind.__qualname__}"
        assert path in mine[name].classes, name


def test_names_that_rule_files_match() -> None:
    names = {module.name: module for module in build_tree(embedded("deepseek-v2-chat")).walk()}
    layer = "model.layers.59"
    kt = "ktransformers.models.modeling_deepseek"
    for name, alias in {
        f"{layer}.mlp": f"{kt}.DeepseekV2MoE",
        f"{layer}.mlp.gate": f"{kt}.MoEGate",
        f"{layer}.self_attn": f"{kt}.DeepseekV2Attention",
        f"{layer}.self_attn.rotary_emb": f"{kt}.DeepseekV2YarnRotaryEmbedding",
        f"{layer}.self_attn.kv_b_proj": "torch.nn.Linear",
        f"{layer}.mlp.experts": "torch.nn.ModuleList",
        "model.layers.0.mlp": f"{kt}.DeepseekV2MLP",
        "model": f"{kt}.DeepseekV2Model",
        "lm_head": "torch.nn.Linear",
        "": f"{kt}.DeepseekV2ForCausalLM",
    }.items():
        assert alias in names[name].classes
    assert names[layer + ".mlp.experts"].classes[0] == "Experts"
    assert names[layer + ".mlp.experts"].children == ()
    assert len(names[layer + ".mlp.experts"].tensors) == 3
    v3 = {module.name: module for module in build_tree(embedded("deepseek-v3")).walk()}
    assert "ktransformers.models.modeling_deepseek_v3.MoEGate" in v3["model.layers.3.mlp.gate"].classes
    assert "MLP" in v3["model.layers.2.mlp"].classes
    assert "MoE" in v3["model.layers.3.mlp"].classes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_is_in_one_place(architecture: str) -> None:
    m, tree = make_tiny(architecture), TREES[architecture]
    placed = [tensor.name for module in tree.walk() for tensor in module.tensors]
    assert sorted(placed) == sorted(tensor.name for tensor in m.tensors)
    assert tree.weight_bytes == m.n_bytes


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_children_are_named_below_their_parents(tree: Module) -> None:
    def check(module: Module) -> None:
        for child in module.children:
            assert child.name.startswith(f"{module.name}." if module.name else "")
            check(child)

    check(tree)
    names = [module.name for module in tree.walk()]
    assert len(names) == len(set(names))
    assert names[:3] == ["", "model", "model.embed_tokens"]


def test_a_tied_head_has_no_tensor() -> None:
    tree = build_tree(make_tiny(tied=True))
    head = next(module for module in tree.walk() if module.name == "lm_head")
    assert head.tensors == ()
