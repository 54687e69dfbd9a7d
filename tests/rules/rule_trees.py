"""Small trees for the tests of rules: three decoder layers of DeepSeek-V2's make, the first of them dense."""

from __future__ import annotations

from kbench.core import Module, TensorInfo

_KT = "ktransformers.models.modeling_deepseek."
_LINEAR = ("Linear", "torch.nn.Linear")


def tensor(name: str, quant: str = "Q4_K", kind: str = "attention") -> TensorInfo:
    return TensorInfo(name, (256, 4), quant, kind)


def linear(name: str, quant: str = "Q4_K") -> Module:
    return Module(name, _LINEAR, (tensor(f"{name}.weight", quant),))


def norm(name: str) -> Module:
    return Module(name, ("RMSNorm", f"{_KT}DeepseekV2RMSNorm"), (TensorInfo(f"{name}.weight", (256,), "F32", "norms"),))


def layer(index: int, experts_quant: str) -> Module:
    name = f"model.layers.{index}"
    attention = Module(
        f"{name}.self_attn",
        ("Attention", f"{_KT}DeepseekV2Attention"),
        children=(
            linear(f"{name}.self_attn.q_proj"),
            linear(f"{name}.self_attn.kv_b_proj"),
            Module(f"{name}.self_attn.rotary_emb", ("RotaryEmbedding", f"{_KT}DeepseekV2YarnRotaryEmbedding")),
        ),
    )
    if index == 0:
        mlp = Module(f"{name}.mlp", ("MLP", f"{_KT}DeepseekV2MLP"), children=(linear(f"{name}.mlp.up_proj"),))
    else:
        experts = (tensor(f"blk.{index}.ffn_up_exps.weight", experts_quant, "routed experts"),)
        mlp = Module(
            f"{name}.mlp",
            ("MoE", f"{_KT}DeepseekV2MoE"),
            children=(
                Module(f"{name}.mlp.experts", ("Experts", "torch.nn.ModuleList"), experts),
                Module(f"{name}.mlp.gate", ("MoEGate", f"{_KT}MoEGate"), (tensor(f"{name}.gate", "F32", "router"),)),
            ),
        )
    classes = ("DecoderLayer", f"{_KT}DeepseekV2DecoderLayer")
    return Module(name, classes, children=(norm(f"{name}.input_layernorm"), attention, mlp))


def tiny_tree(n_layers: int = 3, experts_quant: str = "Q4_K") -> Module:
    layers = Module("model.layers", ("ModuleList",), children=tuple(layer(i, experts_quant) for i in range(n_layers)))
    embedding = Module(
        "model.embed_tokens", ("Embedding", "torch.nn.Embedding"), (tensor("token_embd.weight", kind="embedding"),)
    )
    model = Module("model", ("Model", f"{_KT}DeepseekV2Model"), children=(embedding, layers, norm("model.norm")))
    return Module("", ("CausalLM", f"{_KT}DeepseekV2ForCausalLM"), children=(model, linear("lm_head", "Q6_K")))
