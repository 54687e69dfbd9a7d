"""What becomes of the kernels on a chip: compiled ahead of time, without one, and read back from the machine code."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kbench.core import InvalidEnvironment

from .chip import Chip
from .kept_kernel import KeptKernel

_TENSOR_CORES = ("HMMA", "HGMMA", "WGMMA", "UTCHMMA", "UTCMMA")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of a kernel, in numbers.

    Attributes:
        registers: of a thread.
        spilled_bytes: of a thread, in local memory: values that found no register.
        local_accesses: instructions that store or load these.
        shared_bytes: of a block.
        wide_loads: instructions that load 16 bytes a thread from the GPU's memory, to registers or to shared memory.
        wide_stores: instructions that store 16 bytes a thread to the GPU's memory.
        tensor_core_instructions: those that multiply there.
    """

    registers: int
    spilled_bytes: int
    local_accesses: int
    shared_bytes: int
    wide_loads: int
    wide_stores: int
    tensor_core_instructions: int

    def faults(self, kernel: KeptKernel, chip: Chip) -> list[str]:
        """Why ``kernel`` must not be chosen on ``chip``; empty where it may."""
        found = []
        if self.spilled_bytes or self.local_accesses:
            found.append(f"{self.spilled_bytes} bytes of a thread spill")
        if self.shared_bytes > chip.block_shared_bytes:
            found.append(f"{self.shared_bytes} bytes of shared memory, of {chip.block_shared_bytes}")
        if kernel.wide_loads and not self.wide_loads:
            found.append("no load of 16 bytes")
        if kernel.wide_stores and not self.wide_stores:
            found.append("no store of 16 bytes")
        if kernel.tensor_cores != (self.tensor_core_instructions > 0):
            found.append(f"{self.tensor_core_instructions} tensor-core instructions")
        return found


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What the compiler made of a kernel.

    Attributes:
        registers, spilled_bytes, shared_bytes: as ``Compiled`` has them.
        instructions: as they lie in the GPU's memory.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: bytes

    def read(self, text: str) -> Compiled:
        """In numbers; ``text``: the instructions as ``nvdisasm`` prints them."""
        lines = re.findall(r"^\s+(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)", text, re.MULTILINE)
        found = Counter(lines)

        def count(*names: str) -> int:
            return sum(n for name, n in found.items() if name.startswith(names))

        def wide(begin: str) -> int:
            # LDGSTS too, to shared memory; what the cache is told stands behind the width of some.
            widths = {"128", "256"}
            return sum(n for name, n in found.items() if name.startswith(begin) and widths & {*name.split(".")})

        return Compiled(
            self.registers, self.spilled_bytes, count("LDL", "STL"), self.shared_bytes, wide("LDG"), wide("STG"),
            count(*_TENSOR_CORES),
        )  # fmt: skip


def compile_kernel(kernel: KeptKernel, chip: Chip) -> MachineCode:
    """``kernel`` as it runs on ``chip``.

    Raises:
        InvalidEnvironment: no triton that compiles, or it interprets (TRITON_INTERPRET).
        ValueError: ``kernel`` does not say of each parameter of its function what it is.
    """
    triton, tools = _triton()
    function = kernel.load()
    names, said = function.arg_names, {**kernel.arguments, **kernel.constants}
    if set(names) != set(said):
        raise ValueError(f"{kernel.function}: parameters {sorted(set(names) ^ set(said))} on one side only")
    aligned = [n for n in names if n in kernel.multiples or kernel.arguments.get(n, "").startswith("*")]
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: kernel.arguments.get(name, "constexpr") for name in names},
        constexprs=dict(kernel.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = triton.backends.compiler.GPUTarget("cuda", chip.capability, 32)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": kernel.fp_fusion}
    options |= {"maxnreg": kernel.registers} if kernel.registers else {}
    found = triton.compile(source, target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(found.asm["cubin"])
        usage = _read(tools / "cuobjdump", "-res-usage", path)
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    return MachineCode(registers, stack, int(found.metadata.shared), _instructions(found.asm["cubin"]))


def _instructions(cubin: bytes) -> bytes:
    """Of the one function in an ELF file (64 bits, little-endian): a section's header has its name at 0, its place in
    the file at 24, its size at 32; the file's has, at 40, where the sections' are, and at 58 how long, how many, and
    which holds names."""
    (first,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    places = [struct.unpack_from("<I20xQQ", cubin, first + i * size) for i in range(count)]
    names = places[names_at][1]
    found = [cubin[at : at + n] for name, at, n in places if cubin[names + name :].startswith(b".text.")]
    assert len(found) == 1, "one kernel, into which everything was drawn"
    return found[0]


def read_all(codes: Sequence[MachineCode], chip: Chip) -> list[Compiled]:
    """Each of ``codes`` for ``chip``, in numbers. NVIDIA's disassembler takes half a second to start, so that it reads
    all of them at once, one behind the other."""
    _, tools = _triton()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "instructions"
        path.write_bytes(b"".join(code.instructions for code in codes))
        # From 9.0 on Triton compiles for what that chip alone has.
        text = _read(tools / "nvdisasm", "-b", f"SM{chip.capability}{'a' * (chip.capability >= 90)}", path)
    lines = [(int(at[1], 16), line) for line in text.splitlines() if (at := re.match(r"\s+/\*([0-9a-f]+)\*/", line))]
    found, start = [], 0
    for code in codes:
        end = start + len(code.instructions)
        found.append(code.read("\n".join(line for at, line in lines if start <= at < end)))
        start = end
    return found


def compile_all(cases: Sequence[tuple[KeptKernel, Chip]], processes: int, at_once: int = 30) -> Iterator[Compiled]:
    """Each of ``cases`` in turn, ``at_once`` at a time, in as many processes: the compiler holds Python's lock."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        codes = pool.map(compile_kernel, *zip(*cases, strict=True))
        for first in range(0, len(cases), at_once):
            some = [*zip(cases[first : first + at_once], codes, strict=False)]
            found: dict[int, list[Compiled]] = {}
            for chip in {chip.capability: chip for (_, chip), _ in some}.values():
                found[chip.capability] = read_all([code for (_, on), code in some if on == chip], chip)[::-1]
            yield from (found[chip.capability].pop() for (_, chip), _ in some)


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


def _read(tool: Path, *arguments: str | Path) -> str:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout
