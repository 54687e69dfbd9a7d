"""Hugging Face models out of GGUF files, and GGUF files out of Hugging Face models: the engine's oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

_SHARED = ("shared_expert", "shared_experts")
# Hugging Face name of a layer's part -> GGUF name.
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.{s}.{part}_proj": f"ffn_{part}_shexp" for s in _SHARED for part in ("gate", "up", "down")},
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{_PARTS[part]}.{kind}"


def _permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from Hugging Face's halves to llama's neighbouring pairs."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _heads(name: str, heads: int, kv_heads: int) -> int:
    return {"attn_q": heads, "attn_k": kv_heads}.get(name.split(".")[-2], 0)


def llama_from_gguf(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A ``LlamaForCausalLM`` with the file's weights, dequantised by the gguf package."""
    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields[f"llama.{key}"].contents()  # noqa: E731
    config = transformers.LlamaConfig(
        vocab_size=get("vocab_size"),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=get("context_length"),
        rope_theta=get("rope.freq_base"),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")},
        tie_word_embeddings="output.weight" not in {t.name for t in reader.tensors},
        attn_implementation="eager",
    )
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model = model.to(dtype).eval()
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = stored[gguf_name(name)]
            heads = _heads(gguf_name(name), config.num_attention_heads, config.num_key_value_heads)
            if heads:
                weight = _unpermute(weight, heads)
            parameter.copy_(torch.from_numpy(np.array(weight)).to(dtype))
    # Buffers do not survive the meta device: rotary frequencies are made anew.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def _gpt_oss_experts(name: str, weight: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """gpt-oss's experts ``[experts, k, n]`` and their biases ``[experts, n]``, gate and up in turns along n."""
    block, _, part = name.removeprefix("model.layers.").partition(".mlp.experts.")
    kind = "bias" if part.endswith("_bias") else "weight"
    rows = weight if kind == "bias" else weight.swapaxes(1, 2)
    halves = {"gate": rows[:, 0::2], "up": rows[:, 1::2]} if part.startswith("gate_up") else {"down": rows}
    yield from ((f"blk.{block}.ffn_{which}_exps.{kind}", half) for which, half in halves.items())


def _stored(model: Any, architecture: str, experts: str) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a file, as llama.cpp's converter names and shapes them."""
    config = model.config
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", buffer.float().numpy()
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float().numpy()
        _, _, part = name.partition(".mlp.experts.")
        if part and architecture == "gpt-oss":
            yield from _gpt_oss_experts(name, weight)
            continue
        if name.endswith(".sinks"):
            yield f"blk.{name.split('.')[2]}.attn_sinks.weight", weight
            continue
        if part:
            block = f"blk.{name.split('.')[2]}"
            stacks = (
                {"down": weight}
                if part == "down_proj"
                else dict(zip(("gate", "up"), np.split(weight, 2, axis=1), strict=True))
            )
            if experts == "fused" and part == "gate_up_proj":
                stacks = {"gate_up": weight}
            for which, stack in stacks.items():
                if experts == "split":
                    yield from ((f"{block}.ffn_{which}.{i}.weight", matrix) for i, matrix in enumerate(stack))
                else:
                    yield f"{block}.ffn_{which}_exps.weight", stack
            continue
        target = gguf_name(name)
        if architecture in ("glm4moe", "gpt-oss"):
            target = target.replace("ffn_norm", "post_attention_norm")
        heads = _heads(target, config.num_attention_heads, config.num_key_value_heads)
        yield target, (_permute(weight, heads) if architecture == "llama" and heads else weight).squeeze()


def _write_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    experts = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)
    experts = experts or getattr(config, "n_routed_experts", 0)
    if not experts:
        return
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    for attribute, add in {
        # gpt-oss calls the width of its experts that of the MLP.
        "moe_intermediate_size"
        if hasattr(config, "moe_intermediate_size")
        else "intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
    }.items():
        if getattr(config, attribute, None):
            add(getattr(config, attribute))
    if getattr(config, "n_shared_experts", 0):
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)


def write_gguf(
    model: Any, path: Path, architecture: str, freq_factors: np.ndarray | None = None, experts: str = "stacked"
) -> None:
    """Writes ``model`` in float32, with a vocabulary of the first ``vocab_size`` byte tokens and no merges.

    ``experts``: ``stacked`` as files are made now, ``split`` with one tensor an expert as they were in 2023, ``fused``
    with gate and up in one.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rotated = config.rope_parameters.get("partial_rotary_factor", 1)
    writer.add_rope_dimension_count(int(head_dim * rotated))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
    writer.add_vocab_size(config.vocab_size)
    write_vocabulary(writer, config.vocab_size)
    _write_experts(writer, config)
    for target, weight in _stored(model, architecture, experts):
        writer.add_tensor(target, np.ascontiguousarray(weight))
    if freq_factors is not None:
        writer.add_tensor("rope_freqs.weight", freq_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """The first ``n_vocab`` byte tokens and no merges."""
    printable = [chr(b) if 0x21 <= b < 0x7F else chr(0x100 + b) for b in range(n_vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(printable)
    writer.add_token_types([1] * n_vocab)
    writer.add_token_merges([])
    writer.add_eos_token_id(0)


def hidden_states(model: Any, ids: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """What each decoder layer puts out, ``[tokens, d]``, and the logits ``[tokens, vocab]``."""
    outputs: list[np.ndarray] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        outputs.append(tensor[0].detach().double().numpy().copy())

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    try:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().numpy()
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, logits


def greedy(model: Any, prompt: list[int], n_tokens: int) -> tuple[list[int], np.ndarray]:
    """The likeliest ``n_tokens`` behind ``prompt`` by transformers' own ``generate``, over its own cache, and the
    logits ``[n_tokens, vocab]`` that each was chosen from. A token that would end a text is one like any other."""
    model.generation_config.eos_token_id = None  # what the call below gives counts only where it is not None
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=n_tokens, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return made.sequences[0, len(prompt) :].tolist(), torch.cat(made.logits).double().numpy()


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm-wise: ``|found - expected| / |expected|``."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
