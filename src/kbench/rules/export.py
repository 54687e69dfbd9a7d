"""An assignment in other tools' words: KTransformers' YAML, and llama.cpp's tensor overrides.

Both say less than kbench's form: KTransformers has no thread counts or kernel parameters per module, llama.cpp knows
devices only and one placement for both phases. What cannot be said is left out.
"""

from __future__ import annotations

import re

from kbench.core import Assignment, Device, Module, Phase, Placement, UserError, is_injected

from .classes import answers_to
from .emit import Group, group_modules, name_patterns
from .fold import either, number_regex, split_number

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


def to_ktransformers(assignment: Assignment, tree: Module) -> str:
    """KTransformers' YAML. Placements are those of decode; prefill runs the same way (layer-wise prefill off).

    Raises:
        UserError: a module is done by somebody's own operator.
    """
    _refuse_own(assignment, tree, "KTransformers")
    whole = {module.name: assignment.get(module.name, Placement()) for module in tree.walk()}
    lines = []
    transfer_map = _transfer_map(whole, tree)
    for group in group_modules(whole, tree):
        for pattern, modules in name_patterns(group):
            if modules[0].name and not (group.operator == "default" and not any(m.tensors for m in modules)):
                lines += _rule(group, pattern, modules, transfer_map)
    return "\n".join(lines) + "\n"


def _refuse_own(assignment: Assignment, tree: Module, tool: str) -> None:
    """An operator made for kbench computes on its arrays: another tool that imported it would fail at the first token,
    and one that left it out would compute another model."""
    own = [
        (module.name, operator)
        for module in tree.walk()
        for operator in map(assignment.get(module.name, Placement()).implementation, (Phase.DECODE, Phase.PREFILL))
        if is_injected(operator)
    ]
    if own:
        modules = list(dict.fromkeys(name for name, _ in own))
        more = f" and {len(modules) - 1} more modules" if len(modules) > 1 else ""
        raise UserError(
            f"{own[0][1]} replaces {modules[0]}{more}: {tool} cannot run an operator made for kbench",
            where="rules",
            todo="export a rule file without it",
        )


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


def to_llama_cpp(assignment: Assignment, tree: Module, *, gpu_layers: int = 999) -> list[str]:
    """Arguments for llama.cpp: everything on the GPU, then an override for each tensor that decodes elsewhere.

    The embedding needs none (llama.cpp looks tokens up on the CPU). Patterns hold no comma: it joins overrides there.

    Raises:
        UserError: a module is done by somebody's own operator.
    """
    _refuse_own(assignment, tree, "llama.cpp")
    stems: dict[tuple[str, str, str], set[int]] = {}
    plain: dict[str, list[str]] = {}
    devices = {assignment.get(module.name, Placement()).generate_device for module in tree.walk() if module.tensors}
    if all(device.kind == "cpu" for device in devices):
        return ["-ngl", "0"]
    for module in tree.walk():
        device = assignment.get(module.name, Placement()).generate_device
        buffer = "CPU" if device.kind == "cpu" else f"CUDA{device.index}"
        if buffer == "CUDA0" and len({d for d in devices if d.kind == "cuda"}) == 1:
            continue
        for tensor in module.tensors:
            head, number, tail = split_number(tensor.name)
            if tensor.kind == "embedding":
                continue
            if number is None:
                plain.setdefault(buffer, []).append(tensor.name)
            else:
                stems.setdefault((buffer, head, tail), set()).add(number)
    merged: dict[tuple[str, str, frozenset[int]], list[str]] = {}
    for (buffer, head, tail), numbers in stems.items():
        merged.setdefault((buffer, head, frozenset(numbers)), []).append(tail)
    arguments = ["-ngl", str(gpu_layers)]
    for (buffer, head, layer_numbers), tails in merged.items():
        arguments += ["-ot", f"^{re.escape(head)}{number_regex(layer_numbers)}{either(tails)}$={buffer}"]
    for buffer, names in plain.items():
        arguments += ["-ot", f"^{either(names)}$={buffer}"]
    return arguments
