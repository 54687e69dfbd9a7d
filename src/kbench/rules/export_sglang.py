"""An assignment as a command line of sglang-kt, KTransformers' present server: SGLang with routed experts on the CPU.

It knows one choice, how many routed experts are on the GPUs, and a rule for which: as many of each layer, or all of the
first layers. Everything else is on the GPUs, taken from the Hugging Face checkpoint; experts on the CPU come from a
folder of GGUF files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from kbench.core import CPU, Assignment, Module, Phase, UserError, format_bytes

from .exported import (
    Export,
    Serving,
    flags,
    kernel_notes,
    named,
    refuse_own,
    tensor_places,
    thread_notes,
)
from .fold import ranges
from .option_grammar import option_grammar
from .transfer_map import layer_of

TOOL = "sglang-kt"
_EXPERTS, _EMBEDDING = "routed experts", "embedding"
# Of one block of most GGUF types, which its GGUF backend does not cut.
_WIDTH = 256


def export_sglang_kt(assignment: Assignment, tree: Module, serving: Serving) -> Export:
    """For ``sglang.launch_server`` of sglang-kt.

    Raises:
        UserError: a module is done by somebody's own operator or by another host; a model without routed experts, rules
            without a GPU.
    """
    refuse_own(assignment, tree, TOOL)
    experts = _experts(assignment, tree)
    gpus = sorted({p.generate_device for _, _, p in tensor_places(assignment, tree)} - {CPU})
    if not experts:
        raise UserError("no routed experts", where="--model", accepted=f"for {TOOL}, a mixture of experts")
    if not gpus:
        raise UserError(
            "everything is on the CPU", where="rules", accepted=f"for {TOOL}, rules with a GPU: attention runs there"
        )
    counts = [on_gpu for on_gpu, _ in experts.values()]
    n_experts = next(iter(experts.values()))[1]
    # Only the first layers, all of them: what front-loading does. Else as many of each layer.
    n_whole = counts.count(n_experts)
    front = 0 < n_whole < len(counts) and counts == [n_experts] * n_whole + [0] * (len(counts) - n_whole)
    threads = _threads(assignment, tree)
    arguments = flags(
        [
            ("--model-path", serving.checkpoint),
            ("--kt-weight-path", posixpath.dirname(serving.model) or "."),
            ("--kt-method", "LLAMAFILE"),
            ("--kt-cpuinfer", threads),
            ("--kt-threadpool-count", 1),
            *_how_many(sum(counts), len(experts), n_experts),
            ("--kt-expert-placement-strategy", "front-loading" if front else "uniform"),
            ("--tensor-parallel-size", len(gpus)),
            ("--base-gpu-id", gpus[0].index),
            ("--context-length", serving.context),
            ("--max-total-tokens", serving.context * serving.sequences),
            ("--max-running-requests", serving.sequences),
            ("--chunked-prefill-size", serving.chunk),
        ]
    )
    grammar = option_grammar("sglang-kt")
    grammar.check(arguments)
    notes = [
        *_notes(assignment, tree, serving, [gpu.index for gpu in gpus]),
        *_expert_notes(experts, n_experts, front),
        *thread_notes(assignment, tree, dict.fromkeys(Phase, threads), TOOL),
        *kernel_notes(assignment, tree, TOOL),
    ]
    return Export(TOOL, f"{grammar.version}, {grammar.source}", tuple(notes), grammar.program, tuple(arguments))


def _experts(assignment: Assignment, tree: Module) -> dict[int, tuple[int, int]]:
    """Layer -> how many of its routed experts are on a GPU, and how many they are."""
    found = {}
    for tensor, module, placement in tensor_places(assignment, tree):
        layer, part = layer_of(module.name), placement.gpu_experts
        if tensor.kind == _EXPERTS and layer is not None and len(tensor.shape) == 3:
            n_there = tensor.shape[2] if placement.generate_device != CPU else len(part.experts) if part else 0
            found[layer] = n_there, tensor.shape[2]
    return dict(sorted(found.items()))


def _notes(assignment: Assignment, tree: Module, serving: Serving, gpus: Sequence[int]) -> list[str]:
    notes = [
        "all but the CPU's experts comes from --model-path, in its own precision: other memory than in the rules",
        "--kt-threadpool-count is to be the number of the machine's NUMA nodes",
    ]
    width = next((t.shape[0] for t, _, _ in tensor_places(assignment, tree) if "ffn_down_exps" in t.name), 0)
    if width % _WIDTH:
        only = f"--kt-method LLAMAFILE, which reads GGUF files, takes experts of widths that {_WIDTH} divides"
        notes.append(f"{only}, not of {width}: another method wants the weights converted for it")
    if _threads(assignment, tree) is None:
        notes.append("--kt-cpuinfer, the threads, is not in the rules: it is to be the number of physical cores")
    here = [(t, m) for t, m, p in tensor_places(assignment, tree) if p.generate_device == CPU and t.kind != _EXPERTS]
    moved = [(t, m) for t, m in here if t.kind != _EMBEDDING]
    if moved:
        n_bytes = format_bytes(sum(tensor.n_bytes for tensor, _ in moved))
        what = named(list(dict.fromkeys(module.name for _, module in moved)))
        notes.append(f"{what} ({n_bytes} in the GGUF file) are on the CPU in the rules, and on the GPUs here")
    if any(tensor.kind == _EMBEDDING for tensor, _ in here):
        notes.append("the embedding is on a GPU too")
    if len(gpus) > 1:
        count = f"{len(gpus)} GPUs"
        notes.append(f"every layer is shared out over {count}, which must be alike; the rules divide by layers")
    if list(gpus) != list(range(gpus[0], gpus[0] + len(gpus))):
        only = ",".join(map(str, gpus))
        notes.append(f"it takes GPUs in a row: CUDA_VISIBLE_DEVICES={only} and --base-gpu-id 0 give it the rules'")
    if serving.kv != "f16":
        notes.append(f"its cache has the type of the model's weights, not {serving.kv} (--kv-cache-dtype knows 8 bits)")
    prefill = [m.name for _, m, p in tensor_places(assignment, tree) if p.prefill_device != p.generate_device]
    if prefill:
        what = named(list(dict.fromkeys(prefill)))
        notes.append(f"prefill of {what} runs where decode does, not where the rules put it")
    return notes


def _threads(assignment: Assignment, tree: Module) -> int | None:
    """Of the routed experts in decode: nothing else runs on the CPU."""
    counts = [
        placement.thread_count(Phase.DECODE)
        for tensor, _, placement in tensor_places(assignment, tree)
        if tensor.kind == _EXPERTS and placement.generate_device == CPU
    ]
    return max(set(counts), key=counts.count, default=None)


def _how_many(total: int, layers: int, n_experts: int) -> list[tuple[str, object]]:
    """How many experts are on the GPUs: of each layer where that comes out even, else as a share of all.

    It cuts the product of share and experts to a whole number: half an expert more does not change that.
    """
    if total % layers == 0:
        return [("--kt-num-gpu-experts", total // layers)]
    return [("--kt-gpu-experts-ratio", f"{(total + 0.5) / (n_experts * layers):.9f}")]


def _expert_notes(experts: Mapping[int, tuple[int, int]], n_experts: int, front: bool) -> list[str]:
    by_count: dict[int, list[int]] = {}
    for layer, (on_gpu, _) in experts.items():
        by_count.setdefault(on_gpu, []).append(layer)
    notes = []
    if len(by_count) > 1 and not front:
        told = "; ".join(
            f"{'all' if count == n_experts else count} experts of layers {ranges(layers)}"
            for count, layers in sorted(by_count.items(), reverse=True)
            if count
        )
        share = f"{sum(count * len(of) for count, of in by_count.items()) / len(experts):.3g} of {n_experts}"
        notes.append(f"the rules have {told} on a GPU; here each layer has about {share} there")
    if not set(by_count) <= {0, n_experts}:
        notes.append("which of a layer's experts are on the GPUs is its own choice, not what gpu_experts lists")
    return notes
