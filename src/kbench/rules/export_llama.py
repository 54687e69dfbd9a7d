"""An assignment as a command line of llama.cpp, or of ik_llama.cpp.

Both place a layer, with its cache, by ``-ngl`` and ``-ts``, and single tensors elsewhere by ``-ot``. The split is
chosen so that caches lie where the rules put attention; overrides then name every tensor that the rules want elsewhere
than its layer, and no other. One placement holds for both phases, and one thread count for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbench.core import CPU, Assignment, Device, Module, Phase, Placement

from .exported import (
    Export,
    Serving,
    common_threads,
    expert_notes,
    flags,
    kernel_notes,
    named,
    refuse_own,
    tensor_places,
    thread_notes,
)
from .fold import ranges, split_number
from .layer_split import LayerSplit, layer_split
from .option_grammar import option_grammar
from .tensor_overrides import TensorOverride, tensor_overrides

LLAMA_CPP, IK_LLAMA_CPP = "llama.cpp", "ik_llama.cpp"

# Tensors that every layer reads: each of them has its own copy, wherever it is.
_OF_EVERY_LAYER = ("rope_freqs.weight",)
_EMBEDDING = "token_embd.weight"
# Both look tokens up on the CPU, whatever -ngl says.
_INPUT = "CPU"
# A logical batch of both, by default.
_BATCH = 2048


@dataclass(frozen=True, slots=True)
class _Placed:
    """The rules as llama.cpp sees them: used GPUs, the split of layers, where each tensor is to lie."""

    gpus: tuple[Device, ...]
    homes: tuple[Device, ...]
    split: LayerSplit
    buffers: Mapping[str, str]
    tied: bool
    head: Device

    def place(self, position: int) -> str:
        """The buffer of a position of the split."""
        gpu = self.split.places[position]
        return "CPU" if gpu < 0 else buffer_name(self.gpus[gpu])

    @property
    def ik_gpu_layers(self) -> int:
        """The same in ik_llama.cpp: layers from the back, the output last of all; without any it opens no GPU."""
        n = self.split.n_gpu_layers
        return n if n == len(self.split.places) else max(1, n - 1)


def buffer_name(device: Device) -> str:
    """The name of a device's memory in a build for CUDA."""
    return "CPU" if device.kind == "cpu" else f"CUDA{device.index}"


def export_llama_cpp(assignment: Assignment, tree: Module, serving: Serving) -> Export:
    """For ``llama-server`` of llama.cpp.

    Raises:
        UserError: a module is done by somebody's own operator, or by another host.
    """
    placed = _placed(assignment, tree, LLAMA_CPP, serving.draft_layers)
    wanted, others = _elsewhere(placed, LLAMA_CPP)
    overrides = tensor_overrides(wanted, others)
    arguments = flags([("-m", serving.model)])
    if placed.gpus:
        arguments += _split_arguments(placed)
        arguments += [word for one in overrides for word in ("-ot", str(one))]
        if _stays_on_host(assignment, tree):
            # Without pinned memory, which only copies to a GPU need, the CPU's faster kernels may repack weights.
            arguments += ["--no-op-offload", "--no-host"]
        arguments += flags([("-fit", "off")])  # it would only say that it cannot, with so much said already
    else:
        arguments += flags([("-ngl", 0), ("-dev", "none")])
    return _export(LLAMA_CPP, assignment, tree, serving, placed, overrides, arguments)


def export_ik_llama_cpp(assignment: Assignment, tree: Module, serving: Serving) -> Export:
    """For ``llama-server`` of ik_llama.cpp.

    Raises:
        UserError: a module is done by somebody's own operator, or by another host.
    """
    placed = _placed(assignment, tree, IK_LLAMA_CPP, serving.draft_layers)
    wanted, others = _elsewhere(placed, IK_LLAMA_CPP)
    overrides = tensor_overrides(wanted, others)
    arguments = flags([("-m", serving.model)])
    if placed.gpus:
        arguments += _split_arguments(placed, ik=True)
        arguments += [word for one in overrides for word in ("-ot", str(one))]
        if _stays_on_host(assignment, tree):
            arguments += ["-op", "-1,0"]
    else:
        # Repacked weights take twice the time to load and are worth it where the CPU does everything.
        arguments += [*flags([("-ngl", 0)]), "-rtr"]
    if _is_latent(tree):
        # 3: decode over the latents, prefill over keys and values made of them; 1: latents in both.
        arguments += flags([("-mla", 1 if _absorbs_prefill(assignment, tree) else 3), ("-amb", 512)])
    return _export(IK_LLAMA_CPP, assignment, tree, serving, placed, overrides, arguments)


def _export(
    tool: str,
    assignment: Assignment,
    tree: Module,
    serving: Serving,
    placed: _Placed,
    overrides: Sequence[TensorOverride],
    arguments: list[str],
) -> Export:
    counts = {phase: common_threads(assignment, tree, phase) for phase in Phase}
    arguments += flags(
        [
            ("-t", counts[Phase.DECODE]),
            ("-tb", counts[Phase.PREFILL]),
            ("-c", serving.context * serving.sequences),
            ("-np", serving.sequences),
            ("-b", max(_BATCH, serving.chunk)),
            ("-ub", serving.chunk),
            ("-ctk", serving.kv),
            ("-ctv", serving.kv),
            ("-fa", "on"),
        ]
    )
    grammar = option_grammar(tool)
    grammar.check(arguments)
    notes = [
        *_place_notes(tool, placed),
        *_phase_notes(tool, assignment, tree, placed),
        *thread_notes(assignment, tree, counts, tool),
        *kernel_notes(assignment, tree, tool),
        *expert_notes(assignment, tree, tool),
    ]
    if placed.gpus:
        other = "another build names it otherwise (ROCm0, Vulkan0)"
        notes.append(f"{buffer_name(placed.gpus[0])} is {placed.gpus[0]} in a build for CUDA; {other}")
    if tool == IK_LLAMA_CPP and not placed.gpus:
        notes.append("-rtr repacks weights while loading, and so does not map the file")
    return Export(tool, f"{grammar.version}, {grammar.source}", tuple(notes), grammar.program, tuple(arguments))


def _placed(assignment: Assignment, tree: Module, tool: str, n_draft: int) -> _Placed:
    refuse_own(assignment, tree, tool)
    homes: dict[int, Device] = {}
    used: set[Device] = set()
    buffers = {}
    for module in tree.walk():
        _, number, tail = split_number(module.name)
        if number is not None and tail in (".self_attn", ".linear_attn"):
            homes[number] = assignment.get(module.name, Placement()).generate_device
    for tensor, _, placement in tensor_places(assignment, tree):
        if tensor.name not in _OF_EVERY_LAYER:
            buffers[tensor.name] = buffer_name(placement.generate_device)
        if tensor.name != _EMBEDDING:
            used.add(placement.generate_device)
    head = assignment.get("lm_head", Placement()).generate_device
    used |= {*homes.values(), head}
    gpus = tuple(sorted(device for device in used if device.kind != "cpu"))
    at = {device: position for position, device in enumerate(gpus)}
    in_order = tuple(homes[number] for number in sorted(homes))
    # Layers that draft are counted too, wherever they are: behind the last one they do not move any other.
    positions = [at.get(device, -1) for device in (*in_order, *(head for _ in range(n_draft)))]
    split = layer_split(positions, at.get(head, -1), len(gpus))
    return _Placed(gpus, in_order, split, buffers, _is_tied(tree), head)


def _elsewhere(placed: _Placed, tool: str) -> tuple[dict[str, str], list[str]]:
    """Tensors that lie elsewhere than the split puts them, with their buffer; and those that need no word."""
    wanted, others = {}, list(_OF_EVERY_LAYER)
    for name, buffer in placed.buffers.items():
        default = _default(placed, name, tool)
        if name == _EMBEDDING:
            # Read as the head too, it lies there as a second copy of the same name; the lookup stays on the CPU.
            if placed.tied and placed.head == CPU and default != "CPU":
                wanted[name] = "CPU"
            else:
                others.append(name)
        elif buffer != default:
            wanted[name] = buffer
        else:
            others.append(name)
    return wanted, others


def _default(placed: _Placed, name: str, tool: str) -> str | None:
    """Where a tensor lies without an override; None where that cannot be foretold."""
    _, number, _ = split_number(name)
    if tool == LLAMA_CPP:
        return placed.place(-1 if number is None else number)
    n_positions, n_gpu_layers = len(placed.split.places), placed.ik_gpu_layers
    offloaded = n_gpu_layers == n_positions if number is None else number >= n_positions - 1 - n_gpu_layers
    if not placed.gpus or not offloaded:
        return "CPU"
    # With several GPUs it weighs -ts by what layers take, which depends on context and batch.
    return buffer_name(placed.gpus[0]) if len(placed.gpus) == 1 else None


def _split_arguments(placed: _Placed, ik: bool = False) -> list[str]:
    names = ",".join(map(buffer_name, placed.gpus))
    n_layers = placed.ik_gpu_layers if ik else placed.split.n_gpu_layers
    pairs: list[tuple[str, object]] = [("-ngl", n_layers), ("-dev", names)]
    if len(placed.gpus) > 1:
        pairs += [("-sm", "layer"), ("-ts", ",".join(map(str, placed.split.parts)))]
    return flags(pairs)


def _stays_on_host(assignment: Assignment, tree: Module) -> bool:
    """Whether prefill, too, is to multiply on the CPU what lies in its memory: by most bytes of those."""
    here = away = 0
    for tensor, _, placement in tensor_places(assignment, tree):
        if placement.generate_device == CPU and tensor.name != _EMBEDDING:
            stays = placement.prefill_device == CPU
            here, away = here + stays * tensor.n_bytes, away + (not stays) * tensor.n_bytes
    return here > away


def _place_notes(tool: str, placed: _Placed) -> list[str]:
    notes = []
    wrong: dict[tuple[str, str], list[int]] = {}
    for number, device in enumerate(placed.homes):
        there = _default(placed, f"blk.{number}.", tool)
        if there is not None and there != buffer_name(device):
            wrong.setdefault((there, buffer_name(device)), []).append(number)
    for (there, home), numbers in wrong.items():
        why = "-ngl and -ts give the last layers to GPUs, in runs"
        notes.append(f"the cache of layers {ranges(numbers)} lies on {there}, not on {home} as their attention: {why}")
    if placed.buffers.get(_EMBEDDING, _INPUT) != _INPUT:
        notes.append(f"tokens are looked up on the CPU, not on {placed.buffers[_EMBEDDING]}")
    if placed.tied and placed.gpus and placed.head != CPU and _default(placed, _EMBEDDING, tool) == "CPU":
        notes.append(f"the head, which is the embedding's matrix, runs on the CPU, not on {placed.head}")
    elif placed.tied and placed.head != CPU and placed.place(-1) != buffer_name(placed.head):
        notes.append(f"the head, which is the embedding's matrix, runs on {placed.place(-1)}, not on {placed.head}")
    if tool == IK_LLAMA_CPP and len(placed.gpus) > 1:
        notes.append(
            f"{tool} weighs the parts of -ts by the bytes of layers: a cache near a border may lie on the other GPU"
        )
    return notes


def _phase_notes(tool: str, assignment: Assignment, tree: Module, placed: _Placed) -> list[str]:
    """Where prefill runs otherwise than the rules say."""
    streams = bool(placed.gpus) and not _stays_on_host(assignment, tree)
    wrong: dict[tuple[str, str], list[str]] = {}
    for tensor, module, placement in tensor_places(assignment, tree):
        decode, prefill = placement.generate_device, placement.prefill_device
        copied = streams and decode == CPU
        if tensor.name != _EMBEDDING and not (prefill.kind == "cuda" if copied else prefill == decode):
            wrong.setdefault((str(prefill), "on a GPU" if copied else f"on {decode}"), []).append(module.name)
    notes = []
    if streams and any(p.generate_device == CPU for t, _, p in tensor_places(assignment, tree) if t.name != _EMBEDDING):
        notes.append(
            f"for prompts from 32 tokens on, {tool} copies what lies in main memory to a GPU, to multiply there"
        )
    for (where, there), names in wrong.items():
        what = named(list(dict.fromkeys(names)))
        notes.append(f"prefill of {what} runs {there}, not on {where} as the rules say: decode decides for both")
    absorbed = [m.name for m in tree.walk() if assignment.get(m.name, Placement()).absorb_for_prefill is not None]
    if absorbed and tool == LLAMA_CPP:
        notes.append(f"absorb_for_prefill of {named(absorbed)} is llama.cpp's own choice")
    return notes


def _is_tied(tree: Module) -> bool:
    return not any(module.tensors for module in tree.walk() if module.name == "lm_head")


def _is_latent(tree: Module) -> bool:
    return any("attn_kv_a_mqa" in tensor.name for module in tree.walk() for tensor in module.tensors)


def _absorbs_prefill(assignment: Assignment, tree: Module) -> bool:
    return any(assignment.get(module.name, Placement()).absorb_for_prefill for module in tree.walk())
