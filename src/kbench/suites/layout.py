"""Where the values of repeated calls live in an arena, so that each call waits for the one before, as in a model.

Calls alternate between two sets of slots. What one call writes begins in the last cache line of what the next reads::

    |-- other inputs --|---- x of set 0 ----|        |-- other inputs --|---- x of set 1 ----|
                                        |-- y of set 1 --|                               |-- y of set 0 --|

A program that starts a call only when its input is complete must therefore wait between calls, and neighbours never
share an input whose quantised form they could share. Only the last 16 numbers of an ``x`` are ever overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import OpCall
from kbench.kernels import AnyArray

LINE_BYTES = 64  # a cache line, and an arena's alignment


def aligned(n_bytes: int) -> int:
    """``n_bytes`` rounded up to whole lines."""
    return n_bytes + -n_bytes % LINE_BYTES


@dataclass(frozen=True, slots=True)
class Slots:
    """Byte offsets of one call's inputs and outputs, in their order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def plan(call: OpCall, inputs: Sequence[AnyArray], tokens: int) -> tuple[tuple[Slots, Slots], int]:
    """The two sets of slots, and the bytes that they take together. ``inputs`` are arrays that need slots."""
    outputs = [aligned((1 if value.rows == "one" else tokens) * value.width * 4) for value in call.outputs]
    sizes = [aligned(array.nbytes) for array in inputs]
    ins: list[tuple[int, ...]] = []
    outs: list[tuple[int, ...]] = []
    end = 0
    for _ in range(2):
        first = end + sum(sizes[1:])  # the first input comes last
        others = [end + sum(sizes[1:i]) for i in range(1, len(sizes))]
        ins.append((first, *others) if sizes else ())
        end = first + sizes[0] if sizes else end
        # The last output (of a router its weights: ids are no floats) begins in the last line of that input.
        begin = end - LINE_BYTES if sizes else end
        places = {len(outputs) - 1: begin}
        end = begin + outputs[-1]
        for index, size in enumerate(outputs[:-1]):
            places[index] = end
            end += size
        outs.append(tuple(places[index] for index in range(len(outputs))))
    return (Slots(ins[0], outs[1]), Slots(ins[1], outs[0])), end


def aligned_buffer(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that start at a cache line."""
    raw = np.zeros(n_bytes + LINE_BYTES, np.uint8)
    begin = -raw.ctypes.data % LINE_BYTES
    return raw[begin : begin + n_bytes]


def write(buffer: npt.NDArray[np.uint8], offset: int, array: AnyArray) -> None:
    """Copies an array's bytes to ``offset``."""
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    buffer[offset : offset + data.size] = data
