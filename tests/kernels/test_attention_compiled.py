"""The attention kernels as compiled code against the scalar one; AVX-512 on any x86-64 under emulation."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src" / "kbench" / "kernels" / "cpu" / "csrc"
CHECK = ROOT / "tests" / "native" / "attention_check.cpp"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]


def _flags() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text() if cpuinfo.exists() else ""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not x86-64")
@pytest.mark.skipif("avx2" not in _flags(), reason="the CPU lacks avx2")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_attention_agrees_with_scalar(isa: str, tmp_path: Path) -> None:
    flags = ["-std=c++17", "-O1", *AVX2, f"-I{CSRC}", f"-DKBENCH_FILL=fill_op_table_{isa}_attention"]
    flags.append("-DKBENCH_FILL_CACHE=fill_op_table_avx2_cache")  # AVX-512 stores rows as AVX2 does
    if isa == "avx512":
        if not Path("/usr/include/simde/x86/avx512.h").exists():
            pytest.skip("no SIMDe headers to emulate AVX-512 with (Debian: libsimde-dev)")
        flags.append("-DKBENCH_SIMDE")
    scalar = [CSRC / "scalar" / f"{name}.cpp" for name in ("ops", "ops_attention", "ops_cache")]
    program = tmp_path / "check"
    sources = [CHECK, CSRC / isa / "ops_attention.cpp", CSRC / "avx2" / "ops_cache.cpp", *scalar]
    command = ["g++", *flags, *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout
