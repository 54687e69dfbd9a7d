"""Reads a model's tensors for somebody's own operator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kbench.core import Module, TensorInfo, UserError, did_you_mean
from kbench.kernels import FloatArray, dequantize
from kbench.model import GgufFile


class TensorLoader:
    """Tensors by their GGUF names (``blk.3.ffn_up.weight``) or by module (``model.layers.3.mlp.up_proj.weight``,
    ``model.layers.3.mlp.experts.ffn_up_exps.weight``). The methods that KTransformers has are called as there."""

    def __init__(self, gguf: GgufFile, tree: Module) -> None:
        self._gguf = gguf
        self._names: dict[str, str] = {name: name for name in gguf.tensors}
        for module in tree.walk():
            for tensor in module.tensors:
                for short in (tensor.name.rpartition(".")[2], ".".join(tensor.name.split(".")[2:])):
                    if short:
                        self._names.setdefault(f"{module.name}.{short}", tensor.name)

    def has_tensor(self, name: str) -> bool:
        return name in self._names

    @property
    def tensor_info(self) -> Mapping[str, TensorInfo]:
        """Shape (row length first) and type of every tensor, by GGUF name."""
        return {name: tensor.info for name, tensor in self._gguf.tensors.items()}

    def get_mmap_tensor(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes as they are stored: a read-only view of the file, or a copy of experts that are apart there."""
        tensor = self._gguf.tensors[self._find(name)]
        return np.concatenate(tensor.parts) if tensor.parts else tensor.raw

    def load_gguf_tensor(self, name: str) -> FloatArray:
        """The numbers as float32, dequantised, in numpy's order: a matrix is ``[n, k]``, experts ``[experts, n, k]``.

        Raises:
            UserError: no such tensor.
        """
        tensor = self._gguf.tensors[self._find(name)]
        shape = tensor.info.shape
        return dequantize(self.get_mmap_tensor(name), tensor.info.quant, shape[0]).reshape(shape[::-1])

    def _find(self, name: str) -> str:
        if name not in self._names:
            raise UserError(f"no tensor {name!r}", where=str(self._gguf.path), todo=did_you_mean(name, self._names))
        return self._names[name]
