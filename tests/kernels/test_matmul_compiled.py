"""The kernels of each ISA in a program of their own: canaries around the output, AVX-512 under emulation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src" / "kbench" / "kernels" / "cpu" / "csrc"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512_FLAGS = [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")]


def cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def defines(isa: str) -> list[str]:
    return [f"-DKBENCH_ISA={isa}", f'-DKBENCH_REGISTERS="{isa}/registers.h"']


def build_and_run(folder: Path, isa: str, flags: list[str]) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    # One translation unit for the ISA: its headers are parsed once. -O0: the emulation takes minutes to optimise, and
    # a second to run as it is.
    sources = sorted([*(CSRC / "matmul").glob("*.cpp"), *(CSRC / isa).glob("quantize.cpp")])
    assert len(sources) > 4
    unit = folder / f"{isa}.cpp"
    flags = [*flags, *defines(isa)]
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    plain = [CSRC / "matrix.cpp", *sorted(CSRC.glob("pack*.cpp")), *sorted((CSRC / "scalar").glob("matmul*.cpp"))]
    plain += [CSRC / "scalar" / "quantize.cpp", ROOT / "tests" / "native" / "matmul_check.cpp"]
    common = [compiler, "-std=c++17", "-O0", "-w", "-ffp-contract=off", f"-I{CSRC}"]
    define = f"-DKBENCH_FILL=fill_matmul_table_{isa}"
    subprocess.run([*common, *flags, "-c", unit, "-o", folder / "isa.o"], check=True)
    subprocess.run([*common, define, *plain, folder / "isa.o", "-o", folder / "check"], check=True)
    result = subprocess.run([folder / "check"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 wrong values" in result.stdout


@pytest.mark.parametrize(("isa", "flags"), [("avx2", AVX2_FLAGS), ("avx512_vnni", AVX512_FLAGS + AVX2_FLAGS)])
def test_objects_of_an_isa_share_no_symbols(tmp_path: Path, isa: str, flags: list[str]) -> None:
    """A weak symbol may replace the same one in code that every CPU runs. -O0 inlines nothing away."""
    compiler, nm = shutil.which(os.environ.get("CXX", "g++")), shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("no C++ compiler")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not x86-64")
    for source in sorted([*(CSRC / isa).glob("*.cpp"), *(CSRC / "matmul").glob("*.cpp")]):
        command = [compiler, "-std=c++17", "-O0", "-w", f"-I{CSRC}", *flags, *defines(isa), "-c", source]
        command += ["-o", tmp_path / "isa.o"]
        subprocess.run(command, check=True)
        symbols = subprocess.run([nm, "-C", tmp_path / "isa.o"], capture_output=True, text=True, check=True).stdout
        weak = [line for line in symbols.splitlines() if line[17:18] in ("W", "V", "w", "v", "u")]
        assert weak == [], source.name


def test_avx2(tmp_path: Path) -> None:
    if not {"avx2", "fma", "f16c", "bmi2"} <= cpu_flags():
        pytest.skip("the CPU lacks AVX2")
    build_and_run(tmp_path, "avx2", AVX2_FLAGS)


def test_avx512_vnni(tmp_path: Path) -> None:
    if not {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= cpu_flags():
        pytest.skip("the CPU lacks AVX-512 VNNI")
    build_and_run(tmp_path, "avx512_vnni", AVX512_FLAGS + AVX2_FLAGS)


def test_avx512_vnni_emulated(tmp_path: Path) -> None:
    if not SIMDE.exists():
        pytest.skip("no SIMDe headers (package libsimde-dev)")
    build_and_run(tmp_path, "avx512_vnni", ["-DKBENCH_SIMDE"])
