"""The module that somebody's own operator replaces, as that operator sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbench.core import Module
from kbench.kernels import AnyArray

if TYPE_CHECKING:
    from .operator_store import OperatorStore


class OriginalModule:
    """Calling it runs the module as if no operator replaced it, where and how its rules say.

    Attributes are the modules below it (``gate_proj``; where a rule gives one an operator of its own, that operator),
    its tensors by their last name (``weight``, ``bias``, ``ffn_up_exps``, ``ffn_up_exps_bias``: float32 in numpy's
    order, dequantised each time), and whatever was set.
    """

    def __init__(self, module: Module, store: OperatorStore, above: str) -> None:
        """``above`` names the replaced module that this is, or that it lies in."""
        self._module, self._store, self._above = module, store, above

    @property
    def key(self) -> str:
        """The module's name."""
        return self._module.name

    @property
    def classes(self) -> tuple[str, ...]:
        """What the module is an instance of."""
        return self._module.classes

    def has(self, name: str) -> bool:
        """Whether ``name`` is a module or tensor of it, or was set."""
        return name in self.__dict__ or name in self._children() or name in self._tensors()

    def forward(self, *inputs: AnyArray) -> AnyArray | Sequence[AnyArray]:
        """The module's output, or its outputs where it has several.

        Raises:
            UserError: another number of inputs than the module has, or a module that cannot be run by itself.
        """
        outputs = self._store.run_original(self._module.name, self._above, inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def __call__(self, *inputs: AnyArray) -> AnyArray | Sequence[AnyArray]:
        return self.forward(*inputs)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            child = self._children().get(name)
            if child is not None:
                return self._store.below(child, self._above)
            tensor = self._tensors().get(name)
            if tensor is not None:
                return self._store.tensors.load_gguf_tensor(tensor)
        known = ", ".join([*self._children(), *self._tensors()]) if "_module" in self.__dict__ else ""
        raise AttributeError(f"the original module has no attribute {name!r}; it has: {known or 'none'}")

    def _children(self) -> dict[str, Module]:
        start = len(self._module.name) + 1
        return {child.name[start:]: child for child in self._module.children}

    def _tensors(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for tensor in self._module.tensors:
            stem, _, last = tensor.name.rpartition(".")
            stem = stem.rpartition(".")[2]
            for name in (last, stem, f"{stem}_{last}"):
                found.setdefault(name, tensor.name)
        return found
