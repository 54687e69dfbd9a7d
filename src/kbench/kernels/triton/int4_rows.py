"""Rows of weights as 4-bit integers with a scale for each group of 64 or 128 columns, and how they lie on a GPU.

    weight = scale * (code - 8) / unit          codes 0 ... 15, scale float16, unit a power of two of the whole matrix

Rows come in tiles of 64, columns in chunks of 256, so that what a program reads at once is one run of 8 KiB, and a
row's part of it one line of 128 bytes. In a chunk, 16 bits hold four columns 64 apart::

    words  int16   [n / 64, k / 256, 64, 64]   word h of a row:  bits 15-12  11-8  7-4  3-0
                                                        column:       192+h  128+h  64+h  h
    scale  float16 [n / 64, k / group, 64]     those of a tile's rows side by side

So nibble ``j`` of a chunk's words is a tile of 64 rows by 64 neighbouring columns, all in one group, that is a factor
of a tensor core's product as it stands; and because words are as wide as a float16 they move to the registers of that
factor without passing between threads. Rows and columns are filled up with weights of 0.

A scale may be negative: of ``-8 ... 7`` the longer side then is the one on which a group's largest weight lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reference import dequantize

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

TILE = 64  # rows
CHUNK = 256  # columns
RUN = CHUNK // 4
GROUPS = (64, 128)
# What the code -8 stands for, as a share of a group's largest weight: below 1 the largest weights are cut off, and all
# others have finer steps. The first cuts nothing, on either side: a step of largest / 7 is what bounds the error.
_REACHES = (8 / 7, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8)
# Values that are rounded at once: 16 MiB in float32.
_SLICE = 4 << 20


@dataclass(frozen=True, slots=True)
class RoundingError:
    """What became of a tensor's numbers.

    Attributes:
        relative_rms: root mean square of the errors, over that of the weights.
        largest: the largest error, over the largest weight.
    """

    tensor: str
    quant: str
    group: int
    relative_rms: float
    largest: float


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """``n`` rows of ``k`` columns, as drawn above, on a device; ``rounding``: how far they are off."""

    n: int
    k: int
    group: int
    words: torch.Tensor
    scale: torch.Tensor
    unit: float
    rounding: RoundingError

    @property
    def chunks(self) -> int:
        """Of a row."""
        return int(self.words.shape[1])

    @property
    def n_bytes(self) -> int:
        return sum(plane.numel() * plane.element_size() for plane in (self.words, self.scale))


def bits_per_weight(group: int) -> float:
    """With the scales, without what fills tiles up."""
    return 4 + 16 / group


def round_rows(values: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``values [n, k]`` float32, ``k`` whole groups, as codes uint8 ``[n, k]`` and scales float32 ``[n, k / group]``.

    Of a few scales for each group the one whose squared errors add up to the least, each improved once to the best
    scale for the codes that it gave. A scale by the largest weight alone leaves larger errors: the tests hold the two
    against each other.
    """
    import torch

    grouped = values.reshape(len(values), -1, group)
    at = grouped.abs().argmax(dim=-1, keepdim=True)
    largest = grouped.gather(-1, at)
    best = torch.full_like(largest, torch.inf)
    scale = torch.zeros_like(largest)
    for reach in _REACHES:
        step = largest * (reach / -8)
        codes = _codes(grouped, step)
        # The best scale for these codes, in the sense of least squares.
        step = (grouped * codes).sum(-1, keepdim=True) / codes.square().sum(-1, keepdim=True).clamp(min=1)
        codes = _codes(grouped, step)
        error = (grouped - step * codes).square().sum(-1, keepdim=True)
        better = error < best
        best, scale = torch.where(better, error, best), torch.where(better, step, scale)
    return (_codes(grouped, scale) + 8).to(torch.uint8).reshape(values.shape), scale[..., 0]


def _codes(grouped: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """-8 ... 7, as floats; 0 where the step is 0."""
    import torch

    inverse = torch.where(step == 0, 0, 1 / step)
    return (grouped * inverse).nan_to_num(0, 0, 0).round().clamp(-8, 7)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 ``[rows, columns]`` of whole tiles and chunks as words."""
    import torch

    rows, columns = codes.shape
    runs = codes.reshape(rows // TILE, TILE, columns // CHUNK, 4, RUN).to(torch.int32)
    words = runs[:, :, :, 0] | runs[:, :, :, 1] << 4 | runs[:, :, :, 2] << 8 | runs[:, :, :, 3] << 12
    # As a signed number of 16 bits.
    signed = torch.where(words >= 1 << 15, words - (1 << 16), words).to(torch.int16)
    return signed.transpose(1, 2).contiguous()


def unpack(words: torch.Tensor) -> torch.Tensor:
    """Codes uint8 ``[rows, columns]``: ``pack``'s inverse."""
    import torch

    tiles, chunks = words.shape[:2]
    wide = words.transpose(1, 2).to(torch.int32)[:, :, :, None, :]
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=words.device)[:, None]
    return (wide >> shifts & 15).to(torch.uint8).reshape(tiles * TILE, chunks * CHUNK)


def stored_codes(matrix: Int4Matrix) -> torch.Tensor:
    """uint8 ``[n, k]``."""
    return unpack(matrix.words)[: matrix.n, : matrix.k].contiguous()


def stored_scale(matrix: Int4Matrix) -> torch.Tensor:
    """float16 ``[n, k / group]``, of weights times ``unit``; of the last group there may be a part only."""
    rows = matrix.scale.transpose(1, 2).reshape(len(matrix.scale) * TILE, -1)
    return rows[: matrix.n, : -(-matrix.k // matrix.group)].contiguous()


def weights_of(matrix: Int4Matrix) -> torch.Tensor:
    """The numbers that a matrix stands for, float64 ``[n, k]``."""
    scale = stored_scale(matrix).double() / matrix.unit
    return (stored_codes(matrix).double() - 8) * scale.repeat_interleave(matrix.group, dim=1)[:, : matrix.k]


def int4_matrix(
    raw: npt.NDArray[np.uint8], quant_name: str, k: int, place: str, group: int = 128, tensor: str = ""
) -> Int4Matrix:
    """Stored rows of ``k`` columns, of any type, rounded to 4 bits on torch device ``place``.

    Numbers that are not finite become 0, and count as errors of that size.
    """
    import torch

    from kbench.core import quant

    rows = raw.reshape(-1, quant(quant_name).row_bytes(k))
    n, tiles, chunks = len(rows), -(-len(rows) // TILE), -(-k // CHUNK)
    codes = torch.full((tiles * TILE, chunks * CHUNK), 8, dtype=torch.uint8, device=place)
    scale = torch.zeros(tiles * TILE, chunks * CHUNK // group, device=place)
    sizes = torch.zeros(4, dtype=torch.float64, device=place)  # squares of errors and weights; the largest of both
    step = max(1, _SLICE // k)
    for start in range(0, n, step):
        values = torch.from_numpy(dequantize(rows[start : start + step], quant_name, k).copy()).to(place)
        values = values.reshape(-1, k).float().nan_to_num(0, 0, 0)
        here = slice(start, start + len(values))
        filled = torch.nn.functional.pad(values, (0, chunks * CHUNK - k))
        codes[here], scale[here] = round_rows(filled, group)
        error = (codes[here].float() - 8) * scale[here].repeat_interleave(group, dim=1) - filled
        found = [part for t in (error, values) for part in (t.double().square().sum(), t.abs().max().double())]
        sizes[0] += found[0]
        sizes[1] += found[2]
        sizes[2:] = torch.maximum(sizes[2:], torch.stack([found[1], found[3]]))
    # The largest weight is brought near 1: scales are normal float16 numbers, and sums of products, too.
    exponent = math.frexp(8 * float(scale.abs().max()))[1]
    unit = 2.0 ** -max(-100, min(100, exponent))
    halves = (scale * unit).to(torch.float16).reshape(tiles, TILE, -1).transpose(1, 2).contiguous()
    squares, weights, worst, most = sizes.tolist()
    report = RoundingError(
        tensor, quant_name, group, (squares / weights) ** 0.5 if weights else 0.0, worst / most if most else 0.0
    )
    return Int4Matrix(n, k, group, pack(codes), halves, unit, report)
