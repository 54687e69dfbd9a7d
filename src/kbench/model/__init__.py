"""Models: GGUF files and descriptors, the module tree, lowering to calls, what it all costs in principle."""

from .architectures import ARCHITECTURES
from .arena import Arena, plan_arena
from .describe import describe_gguf
from .descriptor import Mla, ModelDescriptor, Moe
from .gguf_file import GgufFile, GgufTensor, open_gguf
from .lower import lower
from .tree import build_tree

__all__ = [
    "ARCHITECTURES", "Arena", "GgufFile", "GgufTensor", "Mla", "ModelDescriptor", "Moe", "build_tree", "describe_gguf",
    "lower", "open_gguf", "plan_arena",
]  # fmt: skip
