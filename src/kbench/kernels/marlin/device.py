"""``marlin``: matrices rounded to 4 bits, everything else as ``triton`` does it, on tensors that stay on a device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbench.core import Block, OpCall, Problem

from ..block_parameters import BlockParameter
from ..implementation import YES, Prepared, StepState, Support, WeightData
from ..torch_baseline import TorchDevice, TorchWeights
from ..triton import TritonDevice, TritonImplementation, interpreted
from ..triton.int4_product import halved, multiply
from ..triton.int4_rows import CHUNK, GROUPS, TILE, Int4Matrix, RoundingError, int4_matrix, stored_codes, stored_scale
from .package import MarlinPackage, PackedByPackage, installed_package, multiply_by, pack_for, takes_shape
from .parameters import PARAMETERS, cut_of, group_of

if TYPE_CHECKING:
    import torch

NAME = "marlin"
# Tensor cores that multiply 16-bit numbers as the kernels want it came with 8.0.
_CAPABILITY = (8, 0)


class MarlinDevice(TritonDevice):
    """int4 products on torch device ``place``: ``cuda:N``, or ``cpu`` where Triton interprets them.

    Marlin's own kernels multiply where a package that has them is installed, takes the shape, and no rule names a tile.
    """

    def __init__(self, place: str, dtype: str | None = None) -> None:
        super().__init__(place, dtype)
        self.name = NAME

    def accuracy(self, problem: Problem) -> str:
        return "int4" if problem.op == "linear" else super().accuracy(problem)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> TorchWeights:
        """Matrices rounded to 4 bits; what that costs is in ``Int4Matrix.rounding``."""
        if problem.op != "linear":
            return super().prepare(problem, weights, block)
        first = weights[0]
        matrix: Any = int4_matrix(
            first.whole, first.quant, problem.integer("k"), self.place, group_of(block), first.name
        )
        package = _package(self.place) if cut_of(block) is None else None
        if package is not None and takes_shape(matrix.n, matrix.k, matrix.group):
            matrix = _for_package(package, matrix)
        rest = TorchDevice.prepare(self, problem, weights[1:], block) if weights[1:] else TorchWeights(())
        return TorchWeights((matrix, *rest.tensors))

    def stored_bytes(self, problem: Problem, quant_name: str, shape: Sequence[int]) -> int:
        if len(shape) == 1 or problem.op != "linear":
            return super().stored_bytes(problem, quant_name, shape)
        rows, columns = -(-shape[1] // TILE) * TILE, -(-shape[0] // CHUNK) * CHUNK
        return rows * (columns // 2 + columns // min(GROUPS) * 2)

    def _linear(self, call: OpCall, w: Sequence[Any], x: Sequence[torch.Tensor], s: StepState) -> list[Any]:
        if isinstance(w[0], PackedByPackage):
            package = _package(self.place)
            assert package is not None
            rows, row_scale = halved(x[0], w[0].k)
            y = multiply_by(package, rows, w[0]).float() * (row_scale / w[0].unit)[:, None]
        else:
            y = multiply(x[0], w[0], cut_of(call.block))
        return [y + w[1].reshape(-1) if len(w) > 1 else y]


def rounding_errors(prepared: Prepared) -> tuple[RoundingError, ...]:
    """Of the matrices in ``prepared`` that were rounded anew; none where another implementation packed it."""
    if not isinstance(prepared, TorchWeights):
        return ()
    return tuple(t.rounding for t in prepared.tensors if isinstance(t, Int4Matrix | PackedByPackage))


@functools.lru_cache(maxsize=4)
def _package(place: str) -> MarlinPackage | None:
    return installed_package() if place.startswith("cuda") else None


def _for_package(package: MarlinPackage, matrix: Int4Matrix) -> PackedByPackage:
    import torch

    sms = torch.cuda.get_device_properties(matrix.words.device).multi_processor_count
    return pack_for(package, stored_codes(matrix), stored_scale(matrix), matrix.unit, sms, matrix.rounding)


@functools.lru_cache(maxsize=32)
def marlin_device(place: str) -> MarlinDevice:
    """The one for torch device ``place``."""
    return MarlinDevice(place)


class MarlinImplementation(TritonImplementation):
    """``marlin`` as implementations are listed, measured and compared.

    It rounds weights anew, so that nobody gets it who did not ask for it by name.
    """

    name = NAME
    summary = "weights rounded to int4 in groups of 128: Marlin's kernels where installed, else Triton's; float16"
    rounds_weights = True

    def runnable(self) -> Support:
        verdict = super().runnable()
        if not verdict.ok or interpreted():
            return verdict
        import torch

        if torch.cuda.get_device_capability(0) < _CAPABILITY:
            return Support(False, "needs a GPU of compute capability 8.0 or more")
        return YES

    def supports(self, problem: Problem) -> Support:
        return YES if problem.op == "linear" else super().supports(problem)

    def capturable(self, problem: Problem) -> Support:
        """While a graph is captured nothing is measured: a tile that is not known yet is the heuristic's."""
        return YES if problem.op == "linear" else super().capturable(problem)

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return PARAMETERS if problem is None or problem.op == "linear" else super().block_parameters(problem)

    @property
    def _device(self) -> MarlinDevice:
        return marlin_device("cpu" if interpreted() else "cuda:0")
