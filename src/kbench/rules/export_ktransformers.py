"""An assignment in the words of KTransformers as it was until November 2025: a rule file, and what starts it."""

from __future__ import annotations

import posixpath

from kbench.core import Assignment, Device, Module, Phase

from .classes import answers_to
from .emit import Group, group_modules, name_patterns
from .exported import (
    Export,
    Serving,
    common_threads,
    expert_notes,
    flags,
    kernel_notes,
    named,
    placements_of,
    refuse_own,
    tensor_places,
    thread_notes,
)
from .fold import split_number
from .option_grammar import option_grammar

TOOL = "KTransformers"

_OPERATORS = "ktransformers.operators"
# Original class -> KTransformers' operator for it.
_CLASSES = {
    "ktransformers.models.modeling_deepseek.DeepseekV2MoE": f"{_OPERATORS}.experts.KDeepseekV2MoE",
    "ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE": f"{_OPERATORS}.experts.KDeepseekV3MoE",
    "ktransformers.models.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock": f"{_OPERATORS}.experts.KQwen2MoeSparseMoeBlock",
    "ktransformers.models.modeling_deepseek.DeepseekV2Attention": f"{_OPERATORS}.attention.KDeepseekV2Attention",
    "ktransformers.models.modeling_deepseek_v3.DeepseekV3Attention": f"{_OPERATORS}.attention.KDeepseekV2Attention",
    "ktransformers.models.modeling_llama.LlamaAttention": f"{_OPERATORS}.attention.KLlamaAttention",
    "ktransformers.models.modeling_deepseek.DeepseekV2YarnRotaryEmbedding": f"{_OPERATORS}.RoPE.YarnRotaryEmbedding",
    "ktransformers.models.modeling_deepseek_v3.DeepseekV3YarnRotaryEmbedding": (
        f"{_OPERATORS}.RoPE.YarnRotaryEmbeddingV3"
    ),
    "ktransformers.models.modeling_llama.LlamaRotaryEmbedding": f"{_OPERATORS}.RoPE.RotaryEmbedding",
    "ktransformers.models.modeling_deepseek.DeepseekV2Model": f"{_OPERATORS}.models.KDeepseekV2Model",
    "ktransformers.models.modeling_deepseek_v3.DeepseekV3Model": f"{_OPERATORS}.models.KDeepseekV2Model",
    "ktransformers.models.modeling_qwen2_moe.Qwen2MoeModel": f"{_OPERATORS}.models.KQwen2MoeModel",
    "ktransformers.models.modeling_llama.LlamaModel": f"{_OPERATORS}.models.KLlamaModel",
    "ktransformers.models.modeling_deepseek_v3.MoEGate": f"{_OPERATORS}.gate.KMoEGate",
}


def export_ktransformers(assignment: Assignment, tree: Module, serving: Serving) -> Export:
    """The rule file and the command that chats with it.

    Raises:
        UserError: a module is done by somebody's own operator.
    """
    text = to_ktransformers(assignment, tree)
    grammar = option_grammar("ktransformers")
    threads = common_threads(assignment, tree, Phase.DECODE)
    pairs = [
        ("--model_path", serving.checkpoint),
        ("--gguf_path", posixpath.dirname(serving.model) or "."),
        ("--optimize_config_path", serving.rules_file),
        ("--cpu_infer", threads),
        ("--max_new_tokens", min(1000, serving.context)),
        ("--chunk_size", serving.chunk),
    ]
    arguments = flags(pairs)
    grammar.check(arguments)
    notes = [*_notes(assignment, tree, serving), *thread_notes(assignment, tree, dict.fromkeys(Phase, threads), TOOL)]
    notes += [*kernel_notes(assignment, tree, TOOL), *expert_notes(assignment, tree, TOOL)]
    return Export(TOOL, f"{grammar.version}, {grammar.source}", tuple(notes), grammar.program, tuple(arguments), text)


def _notes(assignment: Assignment, tree: Module, serving: Serving) -> list[str]:
    notes = ["--gguf_path is a folder, every GGUF file of which must belong to this model"]
    if serving.kv != "f16":
        notes.append(f"its cache has the type of the model's weights, not {serving.kv}")
    if serving.sequences > 1:
        notes.append(f"it chats with one sequence, not {serving.sequences}")
    prefill = [m.name for _, m, p in tensor_places(assignment, tree) if p.prefill_device != p.generate_device]
    if prefill:
        what = named(list(dict.fromkeys(prefill)))
        notes.append(f"prefill runs where decode does, not where the rules put {what} for it (layer-wise prefill off)")
    return notes


def to_ktransformers(assignment: Assignment, tree: Module) -> str:
    """KTransformers' YAML. Placements are those of decode; prefill runs the same way (layer-wise prefill off).

    Raises:
        UserError: a module is done by somebody's own operator.
    """
    refuse_own(assignment, tree, TOOL)
    whole = placements_of(assignment, tree)
    lines = []
    transfer_map = _transfer_map(whole, tree)
    for group in group_modules(whole, tree):
        for pattern, modules in name_patterns(group):
            if modules[0].name and not (group.operator == "default" and not any(m.tensors for m in modules)):
                lines += _rule(group, pattern, modules, transfer_map)
    return "\n".join(lines) + "\n"


def _rule(group: Group, pattern: str, modules: list[Module], transfer_map: dict[int, Device]) -> list[str]:
    module, place = modules[0], group.placement
    device = str(place.generate_device)
    on_cpu = place.generate_device.kind == "cpu"
    kwargs = {"generate_device": device, "prefill_device": device}
    out = str(place.out_device) if place.out_device is not None else device
    name = next((kt for original, kt in _CLASSES.items() if answers_to(module.classes, original)), "default")
    # The absorbed projections are read as plain weights by the attention operator.
    if group.operator == "Linear" and not module.name.endswith("kv_b_proj"):
        name = f"{_OPERATORS}.linear.KTransformersLinear"
        gpu = "KLinearMarlin" if place.generate_op in ("marlin", "auto", "triton") else "KLinearTorch"
        kwargs |= {"generate_op": "KLinearCPUInfer" if on_cpu else gpu, "prefill_op": "KLinearTorch"}
    elif group.operator == "Experts":
        name = f"{_OPERATORS}.experts.KTransformersExperts"
        gpu = "KExpertsMarlin" if place.generate_op in ("marlin", "auto", "triton") else "KExpertsTorch"
        kwargs |= {"generate_op": "KExpertsCPU" if on_cpu else gpu, "prefill_op": "KExpertsTorch"}
    if on_cpu and "generate_op" in kwargs:
        kwargs["out_device"] = out
        if place.prefill_device.kind == "cuda":
            kwargs["prefill_device"] = str(place.prefill_device)
    lines = ["- match:", f"    name: '{pattern}'", "  replace:", f"    class: {name}", "    kwargs:"]
    if group.operator == "Model" and name != "default":
        lines.append("      per_layer_prefill_intput_threshold: 0")
        if transfer_map:
            lines.append("      transfer_map:")
            lines += [f'        {layer}: "{where}"' for layer, where in transfer_map.items()]
    else:
        lines += [f'      {key}: "{value}"' for key, value in kwargs.items()]
    return [*lines, "  recursive: False"] if group.operator == "Experts" else lines


def _transfer_map(assignment: Assignment, tree: Module) -> dict[int, Device]:
    """The layers at which attention moves to another device."""
    homes: dict[int, Device] = {}
    for module in tree.walk():
        head, number, tail = split_number(module.name)
        if number is not None and head.endswith("layers.") and tail == ".self_attn":
            homes[number] = assignment[module.name].generate_device
    found: dict[int, Device] = {}
    before: Device | None = None
    for layer, device in sorted(homes.items()):
        if before is not None and device != before:
            found[layer] = device
        before = device
    return found
