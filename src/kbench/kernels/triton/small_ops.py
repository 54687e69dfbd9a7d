"""What lies between products, one launch each: see ``small_kernels``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .kept_kernel import KeptKernel

if TYPE_CHECKING:
    import torch

# The longest vector that one program holds: 64 values a thread of eight warps.
MAX_VECTOR = 16384
# Elements of a program where vectors do not matter: 16 bytes a thread.
_BLOCK = 1024
# Elements of a program that turns vectors: as many of a token's heads as these hold.
_BLOCK_TURNED = 2048


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    addend: torch.Tensor | None = None,
    into: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(x + addend, its norm)`` of ``x [rows, width]`` by ``weight [d]``: the first ``d`` of each row, the others pass
    through. Without ``addend`` the first is ``x``. ``into``: where both go, contiguous, apart from what is read."""
    from . import small_kernels  # triton compiles for a GPU, or interprets

    x, d = x.contiguous(), weight.numel()
    total, out = into or (x if addend is None else x.new_empty(x.shape), x.new_empty(x.shape))
    constants = norm_constants(d, x.shape[1], addend is not None)
    with on(x):
        small_kernels.rms_norm[(len(x),)](
            x, x if addend is None else addend.contiguous(), weight, total, out, d, x.shape[1], eps,
            **constants, num_warps=vector_warps(d),
        )  # fmt: skip
    return total, out


def norm_constants(d: int, width: int, adds: bool) -> dict[str, Any]:
    return {"ADDS": adds, "BLOCK": filled(d), "BLOCK_REST": filled(width - d) if width > d else 0}


def rope(
    x: torch.Tensor, frequencies: torch.Tensor, positions: torch.Tensor, factor: float, *, heads: int, neox: bool,
    first: bool,
) -> torch.Tensor:  # fmt: skip
    """``x [tokens, heads * width]`` with ``2 len(frequencies)`` elements of each vector turned: the ``first``, or the
    last. ``positions`` int32 ``[tokens]``."""
    from . import small_kernels

    x, width, half = x.contiguous(), x.shape[1] // heads, len(frequencies)
    out = x.new_empty(x.shape)
    constants = rope_constants(half, width, heads, neox)
    grid = (len(x), -(-heads // constants["BLOCK_H"]))
    with on(x):
        small_kernels.rope[grid](
            x, frequencies, positions, out, heads, width, 0 if first else width - 2 * half, factor,
            **constants, num_warps=4,
        )  # fmt: skip
    return out


def rope_constants(half: int, width: int, heads: int, neox: bool) -> dict[str, Any]:
    rest = width - 2 * half
    block_h = max(1, min(filled(heads), _BLOCK_TURNED // filled(width)))
    return {
        "HALF": half, "NEOX": neox, "BLOCK_H": block_h, "BLOCK": filled(half),
        "BLOCK_REST": filled(rest) if rest else 0,
    }  # fmt: skip


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``."""
    from . import small_kernels

    return _elementwise(small_kernels.silu_mul, gate, up)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y``."""
    from . import small_kernels

    return _elementwise(small_kernels.add, x, y)


def _elementwise(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y, n = x.contiguous(), y.contiguous(), x.numel()
    out = x.new_empty(x.shape)
    with on(x):
        kernel[(-(-n // _BLOCK),)](x, y, out, n, BLOCK=_BLOCK, num_warps=4)
    return out


def gated_add(x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x + sigmoid(hidden . weight) * y`` of ``[rows, d]``."""
    from . import small_kernels

    x, d = x.contiguous(), x.shape[1]
    out = x.new_empty(x.shape)
    with on(x):
        small_kernels.gated_add[(len(x),)](
            x, y.contiguous(), hidden.contiguous(), weight, out, d, BLOCK=filled(d), num_warps=vector_warps(d)
        )  # fmt: skip
    return out


def filled(n: int) -> int:
    """The power of two that holds ``n``."""
    return 1 << (n - 1).bit_length()


def vector_warps(d: int) -> int:
    """Warps of a program that holds a vector of ``d``: 16 bytes a thread, four times at most before there are eight."""
    return 4 if d <= 2048 else 8


def on(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launches on the device of ``x``."""
    import torch

    return torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext()


def kept_kernels() -> Iterator[KeptKernel]:
    """Vectors of DeepSeek-V2 and Llama 3: hidden states, latents, rotations of both kinds."""
    numbers = "*fp32"
    for d, width, adds in ((5120, 5120, True), (512, 576, False)):
        yield KeptKernel(
            "small_kernels.rms_norm",
            f"{d} of {width}{' + residual' if adds else ''}",
            {
                **dict.fromkeys(("x", "addend", "weight", "total", "out"), numbers),
                "d": "i32", "width": "i32", "eps": "fp32",
            },
            norm_constants(d, width, adds),
            vector_warps(d),
            multiples=("d", "width"),
        )  # fmt: skip
    for half, width, heads, neox in ((32, 192, 128, False), (64, 128, 32, True)):
        yield KeptKernel(
            "small_kernels.rope",
            f"{heads} x {2 * half} of {width}, {'neox' if neox else 'norm'}",
            {
                **dict.fromkeys(("x", "frequencies", "out"), numbers), "positions": "*i32",
                **dict.fromkeys(("heads", "width", "first"), "i32"), "factor": "fp32",
            },
            rope_constants(half, width, heads, neox),
            4,
            multiples=("width", "first"),
        )  # fmt: skip
    for name, pointers in (("silu_mul", ("gate", "up", "out")), ("add", ("x", "y", "out"))):
        arguments = {**dict.fromkeys(pointers, numbers), "n": "i32"}
        yield KeptKernel(f"small_kernels.{name}", f"{_BLOCK}", arguments, {"BLOCK": _BLOCK}, 4, multiples=("n",))
    arguments = {**dict.fromkeys(("x", "y", "hidden", "weight", "out"), numbers), "d": "i32"}
    constants, warps = {"BLOCK": 2048}, vector_warps(2048)
    yield KeptKernel("small_kernels.gated_add", "2048", arguments, constants, warps, multiples=("d",))
