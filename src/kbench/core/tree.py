"""A model as a named tree of modules, without weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .quant import quant


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a GGUF file, or one that a descriptor says there would be.

    ``shape`` is in GGUF order: the row length (reduction) first. ``kind`` is the class that byte tables count it
    under: ``routed experts``, ``attention``, ``shared experts``, ``dense FFN``, ``router``, ``norms``,
    ``embedding``, ``lm_head``.
    """

    name: str
    shape: tuple[int, ...]
    quant: str
    kind: str

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return quant(self.quant).row_bytes(self.shape[0]) * math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Module:
    """A node with its Hugging Face name and the class names that it answers to.

    ``classes`` lists the registry name first, then every alias and base class that ``match.class`` may name.
    ``tensors`` are this node's own, not its children's.
    """

    name: str
    classes: tuple[str, ...]
    tensors: tuple[TensorInfo, ...] = ()
    children: tuple[Module, ...] = ()

    def walk(self) -> Iterator[Module]:
        """This node and all below it, depth first, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors at and below this node."""
        return sum(tensor.n_bytes for node in self.walk() for tensor in node.tensors)
