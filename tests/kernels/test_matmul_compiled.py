"""The kernels of each x86 ISA in a program of their own: canaries around the output, AVX-512 under emulation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kbench.kernels.cpu import _native

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src" / "kbench" / "kernels" / "cpu" / "csrc"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
# As in CMakeLists.txt.
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq"))]
FLAGS = {
    "avx2": AVX2,
    "avx_vnni": [*AVX2, "-mavxvnni"],
    "avx512": AVX512,
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512_bf16": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}
# What stands for the flags where the CPU lacks the ISA.
EMULATED = {"avx_vnni": [*AVX2, "-DKBENCH_SIMDE"]}
# How many formats an ISA has no kernels for, because those of the one that it builds on do as well.
N_INHERITED = {"avx512_bf16": 15, "amx": 2}
# The bits of an activation that meet BF16 weights with one and with two planes, where not all do.
BF16_BITS = {"avx512_bf16": "8,24", "amx": "8,16"}
RUNNABLE = {name for name, missing in _native.isas() if not missing}


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not x86-64")
    return found


@pytest.fixture(scope="module")
def plain(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Objects that are the same for every ISA."""
    folder = tmp_path_factory.mktemp("plain")
    sources = [CSRC / "matrix.cpp", CSRC / "raw_tiles.cpp", CSRC / "grids.cpp", CSRC / "scalar" / "quantize.cpp"]
    for pattern in ("pack*.cpp", "dequantize*.cpp", "scalar/matmul*.cpp"):
        sources += sorted(CSRC.glob(pattern))
    command = [compiler, "-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{CSRC}", "-c"]
    subprocess.run([*command, *sources], check=True, cwd=folder)
    return sorted(folder.glob("*.o"))


def no_weak_symbols(item: Path) -> None:
    """A weak symbol may replace the same one in code that every CPU runs."""
    symbols = subprocess.run(["nm", "-C", item], capture_output=True, text=True, check=True).stdout
    weak = [line for line in symbols.splitlines() if line[17:18] in ("W", "V", "w", "v", "u")]
    assert [line for line in weak if "DW.ref.__gxx_personality" not in line] == []  # a reference to the runtime


def matmul_sources(isa: str) -> list[Path]:
    """What fills the table of ``isa``: an ISA without registers of its own adds to the one that it builds on."""
    own = [path for path in sorted((CSRC / isa).glob("*.cpp")) if path.name in ("quantize.cpp", "own.cpp", "table.cpp")]
    shared = sorted((CSRC / "matmul").glob("*.cpp")) if (CSRC / isa / "registers.h").exists() else []
    return [*shared, *own]


@pytest.mark.parametrize("isa", FLAGS)
def test_every_format(isa: str, compiler: str, plain: list[Path], tmp_path: Path) -> None:
    flags = FLAGS[isa]
    if isa not in RUNNABLE:
        if isa == "avx2" or "avx2" not in RUNNABLE:
            pytest.skip("the CPU lacks AVX2")
        if not SIMDE.exists():
            pytest.skip("no SIMDe headers to emulate AVX-512 with (package libsimde-dev)")
        flags = EMULATED.get(isa, ["-DKBENCH_SIMDE"])
    # One translation unit for the ISA: its headers are parsed once. -O0: the emulation takes minutes to optimise, and
    # seconds to run as it is; and nothing is inlined away, so a function that is not static shows as a weak symbol.
    sources = matmul_sources(isa)
    unit, kernels = tmp_path / f"{isa}.cpp", tmp_path / "isa.o"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    defines = [f"-DKBENCH_ISA={isa}", f'-DKBENCH_REGISTERS="{isa}/registers.h"']
    command = [compiler, "-std=c++17", "-O0", "-w", f"-I{CSRC}", f"-I{ROOT / 'tests' / 'native'}", *flags, *defines]
    subprocess.run([*command, "-c", unit, "-o", kernels], check=True)
    check = ROOT / "tests" / "native" / "matmul_check.cpp"
    about = [f"-DKBENCH_FILL=fill_matmul_table_{isa}", f"-DKBENCH_BF16_BITS={BF16_BITS.get(isa, '24,24')}"]
    link = [compiler, "-std=c++17", "-O1", "-w", f"-I{CSRC}", *about, check, *plain, kernels]
    subprocess.run([*link, "-o", tmp_path / "check"], check=True)
    result = subprocess.run([tmp_path / "check"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f" 0 wrong values, {N_INHERITED.get(isa, 0)} formats without a kernel" in result.stdout
    no_weak_symbols(kernels)


@pytest.mark.parametrize("isa", FLAGS)
def test_objects_of_an_isa_share_no_symbols(isa: str, compiler: str, tmp_path: Path) -> None:
    """Those that ``test_every_format`` does not compile."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    for source in sorted({*(CSRC / isa).glob("*.cpp")} - {*matmul_sources(isa)}):
        command = [compiler, "-std=c++17", "-O0", "-w", f"-I{CSRC}", *FLAGS[isa], "-c", source]
        subprocess.run([*command, "-o", tmp_path / "isa.o"], check=True)
        no_weak_symbols(tmp_path / "isa.o")


def test_the_stress_program_of_the_sanitizers_compiles(compiler: str) -> None:
    """It runs for minutes under ThreadSanitizer (``run_tsan.sh``), outside of CI: here it follows its headers."""
    source = ROOT / "tests" / "native" / "pool_stress.cpp"
    subprocess.run([compiler, "-std=c++17", "-fsyntax-only", f"-I{CSRC}", str(source)], check=True)
