"""The protocol that every implementation of an operation follows.

An implementation is named (``reference``, ``torch``, ``cpu.scalar``, ``cpu.avx2``, ``cpu.avx512_vnni``, ...), runs on
one kind of device, says which problems it takes and why not, packs weights once, and then runs. All arrays that
cross this border are numpy arrays in host memory; activations are float32 ``[rows, width]``, C-contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import Block, OpCall, Problem

from .block_parameters import BlockParameter
from .cache import Cache

if TYPE_CHECKING:
    from .torch_baseline import DeviceStep

FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can run here; ``reason`` says why not."""

    ok: bool
    reason: str = ""


YES = Support(True)


@dataclass(frozen=True, slots=True)
class WeightData:
    """A tensor's bytes as GGUF stores them: ``raw`` is uint8, one dimension, usually a view of a memory map.

    ``shape`` is in GGUF order, row length first; experts and heads are the last dimension. Where the matrices of a
    stack do not lie side by side, ``parts`` holds them one by one, and ``raw`` nothing. ``experts``: of a stack that
    holds some of a layer's experts only, which, in order.
    """

    name: str
    quant: str
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]
    parts: tuple[npt.NDArray[np.uint8], ...] = ()
    experts: tuple[int, ...] = ()

    @property
    def whole(self) -> npt.NDArray[np.uint8]:
        """All bytes in one dimension; a copy where there are ``parts``."""
        return np.concatenate(self.parts) if self.parts else self.raw


# Where the tokens of a step belong, int64 [n, 3]: a sequence of the caches, the position of its first token of the step
# in it, and how many tokens it has; in the tokens' order, each sequence once.
Spans = npt.NDArray[np.int64]


@dataclass(slots=True)
class StepState:
    """What changes from step to step: token ids (int32), where they belong, the caches by layer.

    The tokens are those of sequence 0, the first of them at ``position``; or of several sequences, as ``spans`` say.
    With ``on_device`` that is for kernels to read where they run: whoever queues them looks at nothing else here, so
    that what is queued once can be replayed at any position.
    """

    tokens: npt.NDArray[np.int32]
    position: int = 0
    caches: Mapping[int, Cache] = field(default_factory=dict)
    spans: Spans | None = None
    on_device: DeviceStep | None = None
    # What implementations keep of it on their devices, for the calls that share it.
    kept: dict[str, Any] = field(default_factory=dict)

    def place(self, tokens: npt.NDArray[np.int32], spans: Spans) -> None:
        """Makes it the state of a step over ``tokens``, which belong where ``spans`` say."""
        self.tokens, self.spans, self.position = tokens, spans, int(spans[0, 1])

    def parts(self) -> list[tuple[int, int, slice]]:
        """``(sequence, position, rows)`` of each sequence that has tokens in this step."""
        if self.spans is None:
            return [(0, self.position, slice(0, len(self.tokens)))]
        ends = np.cumsum(self.spans[:, 2]).tolist()
        return [
            (sequence, position, slice(end - n, end))
            for (sequence, position, n), end in zip(self.spans.tolist(), ends, strict=True)
        ]

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Of each token: ``[tokens]``."""
        return np.concatenate([np.arange(p, p + rows.stop - rows.start) for _, p, rows in self.parts()])


class Prepared(Protocol):
    """Weights packed for an implementation."""

    @property
    def n_bytes(self) -> int: ...


class Implementation(Protocol):
    """One way to run some operations.

    Attributes:
        name: what rules and command lines call it.
        device_kind: ``cpu`` or ``cuda``.
        summary: one line for ``kbench doctor``: what it is, e.g. which plain torch call a baseline makes.
    """

    name: str
    device_kind: str
    summary: str

    def runnable(self) -> Support:
        """Whether this machine can run it at all."""

    def supports(self, problem: Problem) -> Support:
        """Whether it takes ``problem`` (assuming that it is runnable)."""

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        """What can be chosen of its kernels for ``problem``; None: for any problem."""

    def capturable(self, problem: Problem) -> Support:
        """Whether a call of ``problem`` in a decode step can be a part of a CUDA graph: on a GPU, because what it
        queues depends on nothing that the host looks at; on the CPU, because a host function can run it, without
        Python. ``reason`` says what the host looks at."""

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> Prepared:
        """Packs ``weights`` (in the order of ``OpCall.weights``), as the call's kernel parameters ``block`` say."""

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        """Runs one call and returns its outputs; attention writes ``state.caches[attrs["layer"]]``."""
