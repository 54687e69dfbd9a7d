"""The Arm kernels, cross-compiled and run under emulation: every format against the scalar kernels, with canaries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src" / "kbench" / "kernels" / "cpu" / "csrc"
# As in CMakeLists.txt.
FLAGS = {"neon_dotprod": "-march=armv8.2-a+dotprod", "neon_i8mm": "-march=armv8.2-a+dotprod+i8mm"}


@pytest.fixture(scope="module")
def tools() -> tuple[str, str]:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no cross compiler or no emulator for aarch64 (packages g++-aarch64-linux-gnu, qemu-user)")
    return compiler, emulator


@pytest.fixture(scope="module")
def plain(tools: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Objects that are the same for every instruction set."""
    folder = tmp_path_factory.mktemp("aarch64")
    sources = [CSRC / "matrix.cpp", CSRC / "raw_tiles.cpp", CSRC / "grids.cpp", CSRC / "scalar" / "quantize.cpp"]
    for pattern in ("pack*.cpp", "dequantize*.cpp", "scalar/matmul*.cpp"):
        sources += sorted(CSRC.glob(pattern))
    command = [tools[0], "-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{CSRC}", "-c"]
    subprocess.run([*command, *sources], check=True, cwd=folder)
    return sorted(folder.glob("*.o"))


@pytest.mark.parametrize("isa", FLAGS)
def test_every_format(isa: str, tools: tuple[str, str], plain: list[Path], tmp_path: Path) -> None:
    compiler, emulator = tools
    sources = [*sorted((CSRC / "matmul").glob("*.cpp")), CSRC / isa / "quantize.cpp"]
    unit = tmp_path / "isa.cpp"  # one unit: its headers are parsed once
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    common = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    defines = [f"-DKBENCH_ISA={isa}", f'-DKBENCH_REGISTERS="{isa}/registers.h"', FLAGS[isa]]
    subprocess.run([*common, *defines, "-c", unit, "-o", tmp_path / "isa.o"], check=True)
    check = ROOT / "tests" / "native" / "matmul_check.cpp"
    define = f"-DKBENCH_FILL=fill_matmul_table_{isa}"
    objects = [*plain, tmp_path / "isa.o"]
    subprocess.run([*common, "-w", "-static", define, check, *objects, "-o", tmp_path / "check"], check=True)
    result = subprocess.run([emulator, tmp_path / "check"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 wrong values, 0 formats without a kernel" in result.stdout
    weak = subprocess.run(["nm", "-C", tmp_path / "isa.o"], capture_output=True, text=True, check=True).stdout
    assert [line for line in weak.splitlines() if line[17:18] in ("W", "V", "w", "v", "u")] == []


def test_the_rest_compiles_for_arm(tools: tuple[str, str]) -> None:
    sources = [path for path in sorted(CSRC.glob("*.cpp")) if not path.name.startswith("bindings")]
    command = [tools[0], "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run([*command, *sources, *sorted((CSRC / "scalar").glob("*.cpp"))], check=True)
