"""The extension point: a class of yours that does a module's work, named by a rule.

```python
class Steer(InjectedOperator):
    def __init__(self, *args, strength=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.strength = strength

    def load(self):
        self.direction = np.load(...)

    def forward(self, x):
        return self.orig_module(x) + self.strength * self.direction
```
The constructor is that of KTransformers' ``BaseInjectedModule``, so that operators written for it are quickly moved
here; what flows is numpy, not torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kbench.core import Phase
from kbench.kernels import AnyArray, StepState
from kbench.model import ModelDescriptor

if TYPE_CHECKING:
    from .original_module import OriginalModule
    from .tensor_loader import TensorLoader


class InjectedOperator:
    """Does the work of the module called ``key`` instead of ``orig_module``. Subclass it; override what differs.

    A module is replaced once, whichever phases name the operator. The object is made and ``load`` is called while the
    model loads; ``forward`` runs once a step. Reading an attribute that the operator lacks reads the original's
    (``self.gate_proj``, ``self.weight``); setting one that only the original has sets the original's.

    Attributes:
        key: the module's name, e.g. ``model.layers.3.mlp``.
        gguf_loader: reads tensors of the model's file.
        config: the model's shapes.
        orig_module: what was replaced; calling it runs it.
        prefill_device, generate_device: where the rule puts the module, e.g. ``cpu``.
        device: that of decode, as in KTransformers.
        phase: prefill or decode, during ``forward``.
        state: during ``forward``: ``state.tokens`` (int32 ids of this step), ``state.position`` (tokens before them in
            the cache), ``state.caches`` (by layer); where they are of several sequences, ``state.parts()``.
    """

    def __init__(
        self,
        key: str,
        gguf_loader: TensorLoader,
        config: ModelDescriptor,
        orig_module: OriginalModule,
        prefill_device: str = "cpu",
        generate_device: str = "cpu",
    ) -> None:
        """Other keyword arguments are the rule's own kwargs: take them in your ``__init__`` by name."""
        self.orig_module = orig_module
        self.key, self.gguf_loader, self.config = key, gguf_loader, config
        self.prefill_device, self.generate_device, self.device = prefill_device, generate_device, generate_device
        self.phase = Phase.DECODE
        self.state = StepState(np.zeros(0, np.int32))

    def load(self) -> None:
        """Reads and prepares what ``forward`` needs: called once, before the first step."""

    def forward(self, *inputs: AnyArray) -> AnyArray | Sequence[AnyArray]:
        """The module's outputs for ``inputs``, which must not be written to.

        Inputs are float32 ``[tokens, width]`` (a single row where only the last token counts; int32 for expert ids; the
        ids ``[tokens]`` for the embedding), views that are valid during the call. Returns one such array, or one for
        each output of the module. The default runs the original.
        """
        return self.orig_module(*inputs)

    def __call__(self, *inputs: AnyArray) -> AnyArray | Sequence[AnyArray]:
        return self.forward(*inputs)

    def __getattr__(self, name: str) -> Any:
        # Only asked for what normal lookup does not find; without an original there is nowhere else to look.
        if name == "orig_module" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(self.orig_module, name)
        except AttributeError:
            raise AttributeError(
                f"neither {type(self).__name__} nor the module that it replaces has an attribute {name!r}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        original = self.__dict__.get("orig_module")
        own = name in self.__dict__ or hasattr(type(self), name)
        if original is not None and not own and original.has(name):
            setattr(original, name, value)
        else:
            object.__setattr__(self, name, value)
