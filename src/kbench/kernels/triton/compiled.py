"""What becomes of the kernels on a chip: compiled ahead of time, without one, and read back from the machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import InvalidEnvironment

from .plane_matrix import kernel_constants
from .planes import PLANE_FORMATS, chunk_width
from .tile import Tile

# Compute capability -> shared memory that a block may have, in bytes (CUDA C++ Programming Guide, technical
# specifications per compute capability).
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
_TENSOR_CORES = ("HMMA", "HGMMA", "WGMMA", "UTCHMMA", "UTCMMA")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of a kernel.

    Attributes:
        registers: of a thread.
        spilled_bytes: of a thread, in local memory: values that found no register.
        shared_bytes: of a block.
        instructions: how often each stands in the code; with its modifiers (``LDG.E.128``).
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int]

    def count(self, *names: str) -> int:
        """Instructions whose name begins with one of ``names``."""
        return sum(n for name, n in self.instructions.items() if name.startswith(names))

    @property
    def tensor_core_instructions(self) -> int:
        return self.count(*_TENSOR_CORES)

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes a thread from the GPU's memory, to registers or to shared memory."""
        loads = (name for name in self.instructions if name.startswith(("LDG", "LDGSTS")) and name.endswith("128"))
        return sum(self.instructions[name] for name in loads)


def compile_product(quant_name: str, tile: Tile, capability: int, k: int = 5120) -> Compiled:
    """The product of rows with a matrix of type ``quant_name`` for a chip of compute ``capability`` (80: 8.0).

    Raises:
        InvalidEnvironment: no triton that compiles, or it interprets (TRITON_INTERPRET).
    """
    triton, backends = _triton()
    from . import plane_kernels

    fmt = PLANE_FORMATS[quant_name]
    function = plane_kernels.many_rows if tile.tensor_cores else plane_kernels.few_rows
    # MXFP4's powers of two are float16 numbers too, but for the largest and smallest: the wider case.
    scale_bits = 8 if fmt.nested else 32 if quant_name == "MXFP4" else 16
    constants = kernel_constants(fmt, chunk_width(fmt, k), scale_bits, tile)
    pointers = {
        "x": "*fp16" if tile.tensor_cores else "*fp32", "x_scale": "*fp32", "words": "*i8" if fmt.bits == 8 else "*i32",
        "high": {5: "*u8", 6: "*i16"}.get(fmt.bits, "*i32"), "scale": "*i32", "minimum": "*i32",
        "super_scale": "*fp16", "super_minimum": "*fp16", "out": "*fp32",
    }  # fmt: skip
    names = function.arg_names
    types = {name: pointers.get(name, "fp32" if name.endswith("unit") else "i32") for name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    # What Triton finds out of arguments: memory that torch allocates is aligned, and so are rows of whole chunks.
    aligned = [name for name in names if name in pointers or name in ("n", "columns")]
    source = triton.compiler.ASTSource(
        fn=function,
        signature=signature,
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    found = triton.compile(source, target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(found.asm["cubin"])
        usage = _read(backends / "cuobjdump", "-res-usage", path)
        code = _read(backends / "nvdisasm", "-c", path)
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    lines = re.findall(r"^\s+(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)", code, re.MULTILINE)
    return Compiled(registers, stack, int(found.metadata.shared), Counter(lines))


def _triton() -> tuple[Any, Path]:
    """The module, and the folder of NVIDIA's tools in it."""
    try:
        import triton
        import triton.backends.nvidia
        import triton.compiler
    except ImportError as error:
        raise InvalidEnvironment(f"triton cannot be imported ({error})", todo="pip install triton") from None
    from .device import interpreted

    if interpreted():
        raise InvalidEnvironment("Triton interprets kernels here", where="TRITON_INTERPRET", accepted="unset")
    return triton, Path(triton.backends.nvidia.__file__).parent / "bin"


def _read(tool: Path, option: str, path: Path) -> str:
    return subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout
