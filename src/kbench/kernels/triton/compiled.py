"""What becomes of the kernels on a chip: compiled ahead of time, without one, and read back from the machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
        return self._wide("LDG")

    @property
    def wide_stores(self) -> int:
        """Stores of 16 bytes a thread to the GPU's memory."""
        return self._wide("STG")

    def _wide(self, name: str) -> int:
        # LDGSTS too, to shared memory; what the cache is told stands behind the width of some.
        wide = {"128", "256"}
        return sum(n for found, n in self.instructions.items() if found.startswith(name) and wide & {*found.split(".")})

    def faults(self, kernel: KeptKernel, chip: Chip) -> list[str]:
        """Why ``kernel`` must not be chosen on ``chip``; empty where it may."""
        found = []
        if self.spilled_bytes or self.count("LDL", "STL"):
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


def compile_kernel(kernel: KeptKernel, chip: Chip) -> Compiled:
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
    found = triton.compile(source, target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(found.asm["cubin"])
        usage = _read(tools / "cuobjdump", "-res-usage", path)
        code = _read(tools / "nvdisasm", "-c", path)
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    lines = re.findall(r"^\s+(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)", code, re.MULTILINE)
    return Compiled(registers, stack, int(found.metadata.shared), Counter(lines))


def compile_all(cases: Sequence[tuple[KeptKernel, Chip]], processes: int) -> Iterator[Compiled]:
    """Each of ``cases`` in turn, in as many processes: the compiler holds Python's lock."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(compile_kernel, *zip(*cases, strict=True))


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
