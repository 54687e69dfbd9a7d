"""Models: GGUF files and descriptors, the module tree, lowering to calls, what it all costs in principle."""

from .architectures import ARCHITECTURES, Architecture, architecture
from .arena import Arena, plan_arena
from .crossings import Crossing, crossings, planned_crossings
from .describe import describe_gguf
from .descriptor import Mla, ModelDescriptor, Moe
from .embedded import DEFAULT_QUANT, embedded, embedded_names, with_quant
from .footprint import (
    CallGroup,
    ClassBytes,
    Footprint,
    Intensity,
    ModuleGroup,
    footprint,
    group_calls,
    kv_bytes_per_token,
    layer_kv_bytes,
    layer_state_bytes,
    tensor_classes,
    total_work,
)
from .gguf_file import GgufFile, GgufTensor, open_gguf
from .gguf_parts import first_part, model_stem, stored_bytes
from .injection import boundary
from .load import load_descriptor
from .lower import lower, operator_errors
from .lower_deepseek2 import absorbing_is_faster
from .requantize import LABELS as REQUANTIZED
from .requantize import requantize, requantized_types
from .synth import first_layers, synthesize
from .tree import build_tree

__all__ = [
    "ARCHITECTURES", "DEFAULT_QUANT", "REQUANTIZED", "Architecture", "Arena", "CallGroup", "ClassBytes", "Crossing",
    "Footprint", "GgufFile", "GgufTensor", "Intensity", "Mla", "ModelDescriptor", "ModuleGroup", "Moe",
    "absorbing_is_faster", "architecture", "boundary", "build_tree", "crossings", "describe_gguf", "embedded",
    "embedded_names", "first_layers", "first_part", "footprint", "group_calls", "kv_bytes_per_token", "layer_kv_bytes",
    "layer_state_bytes", "load_descriptor", "lower", "model_stem", "open_gguf", "operator_errors", "plan_arena",
    "planned_crossings", "requantize", "requantized_types", "stored_bytes", "synthesize", "tensor_classes",
    "total_work", "with_quant",
]  # fmt: skip
