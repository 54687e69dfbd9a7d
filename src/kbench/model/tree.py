"""A descriptor as a tree of modules with Hugging Face's names and classes."""

from __future__ import annotations

from collections.abc import Iterable

from kbench.core import Module, TensorInfo

from .architectures import ClassFamily, architecture, class_family
from .descriptor import ModelDescriptor

_BASE = "torch.nn.Module"
_LINEAR = ("Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear", _BASE)
_LIST = ("ModuleList", "torch.nn.ModuleList", "torch.nn.modules.container.ModuleList", _BASE)
_EMBEDDING = ("Embedding", "torch.nn.Embedding", "torch.nn.modules.sparse.Embedding", _BASE)


def build_tree(descriptor: ModelDescriptor) -> Module:
    """The tree of ``descriptor``; its root has the name ``""``.

    Every tensor belongs to the leaf that uses it; ``rope_freqs.weight``, which all layers use, to ``model``. A head
    that shares the embedding's matrix has no tensor of its own.
    """
    return _TreeBuilder(descriptor).root()


class _TreeBuilder:
    def __init__(self, descriptor: ModelDescriptor) -> None:
        self.m = descriptor
        self.family = class_family(descriptor)
        self.by_name = descriptor.tensors_by_name

    def root(self) -> Module:
        layers = tuple(self.layer(index) for index in range(self.m.n_layers))
        model = Module(
            "model",
            self.own("Model", "Model"),
            self.tensors("rope_freqs.weight"),
            (
                Module("model.embed_tokens", _EMBEDDING, self.tensors("token_embd.weight")),
                Module("model.layers", _LIST, children=layers),
                self.norm("model.norm", "output_norm"),
            ),
        )
        head = Module("lm_head", _LINEAR, self.tensors("output.weight"))
        return Module("", self.own("CausalLM", "ForCausalLM"), children=(model, head))

    def own(self, registry_name: str, *suffixes: str) -> tuple[str, ...]:
        return self.named(registry_name, *(self.family.prefix + suffix for suffix in suffixes))

    def named(self, registry_name: str, *names: str) -> tuple[str, ...]:
        return (registry_name, *_paths(self.family, names), _BASE)

    def tensors(self, *names: str) -> tuple[TensorInfo, ...]:
        return tuple(self.by_name[name] for name in names if name in self.by_name)

    def norm(self, name: str, stem: str) -> Module:
        return Module(name, self.own("RMSNorm", "RMSNorm"), self.tensors(f"{stem}.weight"))

    def linear(self, name: str, *stems: str) -> Module:
        names = [f"{stem}.{part}" for stem in stems for part in ("weight", "bias")]
        return Module(name, _LINEAR, self.tensors(*names))

    def layer(self, index: int) -> Module:
        name, block = f"model.layers.{index}", f"blk.{index}"
        children = (
            self.attention(f"{name}.self_attn", block)
            if self.m.attends(index)
            else self.linear_attention(f"{name}.linear_attn", block),
            self.moe(f"{name}.{self.family.moe_name}", block)
            if self.m.has_experts(index)
            else self.mlp(f"{name}.mlp", block, "ffn_{}"),
            self.norm(f"{name}.input_layernorm", f"{block}.attn_norm"),
            self.norm(f"{name}.post_attention_layernorm", f"{block}.{architecture(self.m.architecture).ffn_norm}"),
        )
        return Module(name, self.own("DecoderLayer", "DecoderLayer"), children=children)

    def attention(self, name: str, block: str) -> Module:
        rotary = Module(f"{name}.rotary_emb", self.named("RotaryEmbedding", *self.family.rotary))
        children = [*(self.latent(name, block) if self.m.mla else self.heads(name, block)), rotary]
        own = self.own("Attention", "Attention")
        return Module(name, own, self.tensors(f"{block}.attn_sinks.weight"), tuple(children))

    def linear_attention(self, name: str, block: str) -> Module:
        own = self.tensors(*(f"{block}.{part}" for part in ("ssm_dt.bias", "ssm_a")))
        children = (
            Module(f"{name}.conv1d", ("Conv1d", "torch.nn.Conv1d", _BASE), self.tensors(f"{block}.ssm_conv1d.weight")),
            self.linear(f"{name}.in_proj_qkvz", *(f"{block}.{part}" for part in ("ssm_in", "attn_qkv", "attn_gate"))),
            self.linear(f"{name}.in_proj_ba", f"{block}.ssm_ba"),
            Module(f"{name}.norm", self.own("RMSNorm", "RMSNormGated"), self.tensors(f"{block}.ssm_norm.weight")),
            self.linear(f"{name}.out_proj", f"{block}.ssm_out"),
        )
        return Module(name, self.own("LinearAttention", "GatedDeltaNet"), own, children)

    def heads(self, name: str, block: str) -> Iterable[Module]:
        for letter in "qkv":
            yield self.linear(f"{name}.{letter}_proj", f"{block}.attn_{letter}")
        yield self.linear(f"{name}.o_proj", f"{block}.attn_output")
        if self.m.qk_norm:
            yield self.norm(f"{name}.q_norm", f"{block}.attn_q_norm")
            yield self.norm(f"{name}.k_norm", f"{block}.attn_k_norm")

    def latent(self, name: str, block: str) -> Iterable[Module]:
        assert self.m.mla is not None
        if self.m.mla.q_lora:
            yield self.linear(f"{name}.q_a_proj", f"{block}.attn_q_a")
            yield self.norm(f"{name}.q_a_layernorm", f"{block}.attn_q_a_norm")
            yield self.linear(f"{name}.q_b_proj", f"{block}.attn_q_b")
        else:
            yield self.linear(f"{name}.q_proj", f"{block}.attn_q")
        yield self.linear(f"{name}.kv_a_proj_with_mqa", f"{block}.attn_kv_a_mqa")
        yield self.norm(f"{name}.kv_a_layernorm", f"{block}.attn_kv_a_norm")
        yield self.linear(f"{name}.kv_b_proj", *(f"{block}.attn_{part}" for part in ("kv_b", "k_b", "v_b")))
        yield self.linear(f"{name}.o_proj", f"{block}.attn_output")

    def mlp(self, name: str, block: str, pattern: str) -> Module:
        parts = ("gate", "up", "down")
        children = tuple(self.linear(f"{name}.{part}_proj", f"{block}.{pattern.format(part)}") for part in parts)
        return Module(name, self.own("MLP", "MLP"), children=children)

    def moe(self, name: str, block: str) -> Module:
        assert self.m.moe is not None
        stacks = [f"{block}.ffn_{part}_exps" for part in ("gate", "up", "down")]
        experts = self.tensors(*(f"{stack}.{kind}" for kind in ("weight", "bias") for stack in stacks))
        router = _LINEAR[1:-1] if self.family.linear_router else ()
        gate = self.tensors(*(f"{block}.{t}" for t in ("ffn_gate_inp.weight", "ffn_gate_inp.bias", "exp_probs_b.bias")))
        children = [
            Module(f"{name}.experts", (*self.own("Experts", "Experts"), *_LIST[1:-1]), experts),
            Module(f"{name}.{self.family.router_name}", (*self.named("MoEGate", *self.family.router), *router), gate),
        ]
        if self.m.moe.shared:
            children.append(self.mlp(f"{name}.{self.family.shared_name}", block, "ffn_{}_shexp"))
        if self.m.moe.shared_gate:
            children.append(self.linear(f"{name}.shared_expert_gate", f"{block}.ffn_gate_inp_shexp"))
        return Module(name, self.named("MoE", *self.family.moe), children=tuple(children))


def _paths(family: ClassFamily, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names for module in family.modules)
