"""The optimisation ladder: every step is right on odd shapes, and none is ever chosen for a model."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import Problem, Unsupported, UserError
from kbench.kernels import (
    Example,
    Implementation,
    best,
    candidates,
    example,
    implementation,
    implementations,
    ladder_implementations,
    op_spec,
    support,
)

STEPS = ladder_implementations()
ROOT = Path(__file__).parents[2]
LADDER = ROOT / "src" / "kbench" / "kernels" / "cpu" / "csrc" / "ladder"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
FLAGS = {"avx2": AVX2_FLAGS, "avx512_vnni": [f"-mavx512{p}" for p in ("f", "bw", "vl", "dq", "vnni")] + AVX2_FLAGS}

# One row; fewer rows than a block or a thread's share; an odd number of blocks; a row longer than a block or a slice.
SHAPES = [(1, 32, 1), (7, 96, 3), (50, 64, 5), (33, 2144, 1), (19, 4128, 4)]
CASES = [
    *(f"linear(quant={quant},n={n},k={k},tokens={t})" for quant in ("F32", "Q8_0") for n, k, t in SHAPES),
    "linear(quant=F32,n=21,k=41,tokens=3)",
    # The first position alone; fewer positions than threads; heads that do not divide by threads.
    "attention(heads=9,kv_heads=3,d=64,kv=f32,tokens=1,context=1)",
    "attention(heads=4,kv_heads=4,d=40,kv=f32,tokens=1,context=2)",
    "attention(heads=6,kv_heads=1,d=128,kv=f32,tokens=1,context=333)",
    "top_logits(vocab=1000,top_k=40,tokens=2)",
    "top_logits(vocab=5,top_k=5,tokens=1)",
]


def made(key: str, seed: int = 0) -> Example:
    return example(Problem.parse(key), np.random.default_rng(seed))


def run(item: Implementation, case: Example, threads: int) -> list[Any]:
    prepared = item.prepare(case.call.problem, case.weights)
    return item.run(case.call, prepared, case.inputs, case.state, threads)


def runnable(item: Implementation) -> None:
    if not item.runnable().ok:
        pytest.skip(f"not runnable: {item.runnable().reason}")


@pytest.mark.parametrize("item", STEPS, ids=lambda item: item.name)
def test_within_bounds(item: Implementation) -> None:
    runnable(item)
    keys = [key for key in CASES if item.supports(Problem.parse(key)).ok]
    assert keys
    for key in keys:
        case = made(key)
        for threads in (1, 2, 3):
            judged = op_spec(case.call.op).check(item, case, run(item, case, threads))
            assert judged.ok, f"{key}, {threads} threads: {judged.reason}"


@pytest.mark.parametrize("item", [item for item in STEPS if item.name.endswith("_sort")], ids=lambda item: item.name)
def test_equal_logits_keep_their_order(item: Implementation) -> None:
    case = made("top_logits(vocab=600,top_k=70,tokens=1)")
    case.inputs[0][:] = np.repeat(np.arange(60, dtype=np.float32), 10)
    right = op_spec("top_logits").reference(case.call, (), case.inputs, case.state)
    for got, expected in zip(run(item, case, 1), right, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_wrong_top_logits_are_caught() -> None:
    case = made("top_logits(vocab=600,top_k=7,tokens=2)")
    spec = op_spec("top_logits")
    ids, values = spec.reference(case.call, (), case.inputs, case.state)
    assert spec.check(STEPS[-1], case, [ids, values]).ok
    missing = [np.roll(ids, 1, axis=1), values]
    second = np.sort(case.inputs[0], axis=1)[:, ::-1][:, 1:8].copy()  # all but the largest
    repeated = ids.copy()
    repeated[0, 1] = repeated[0, 0]
    outside = ids.copy()
    outside[1, 3] = 600
    for wrong in (missing, [ids, second], [repeated, values], [outside, values], [ids[:, :-1], values]):
        assert not spec.check(STEPS[-1], case, wrong).ok


def test_known_by_name_but_never_chosen() -> None:
    names = [item.name for item in STEPS]
    assert len(set(names)) == len(names)
    assert not set(names) & {item.name for item in implementations()}
    for item in STEPS:
        assert implementation(item.name) is item
        assert item.summary
        for key in CASES:
            problem = Problem.parse(key)
            assert not best(problem).startswith("ladder.")
            assert item.name not in [other.name for other, _ in candidates(problem)]
            assert item.supports(problem).ok or item.supports(problem).reason
    with pytest.raises(UserError, match=r"did you mean ladder\.blocked"):
        implementation("ladder.blokced")


def test_what_a_step_does_not_do_is_said() -> None:
    naive = implementation("ladder.naive")
    assert "F32" in support(naive, Problem.parse("linear(quant=Q4_K,n=1,k=256,tokens=1)")).reason
    with_bias = example(Problem.parse("linear(quant=F32,n=4,k=8,tokens=1)"), np.random.default_rng(0), bias=True)
    with pytest.raises(Unsupported, match="no bias"):
        naive.prepare(with_bias.call.problem, with_bias.weights)


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    from kbench.kernels.cpu import extension, pool

    for step, size, n, k in (
        ("naive", 4 * 32, 2, 32),
        ("fused", 34 * 3, 1, 64),
        ("fused", 34, 1, 31),
        ("naive", 0, 0, 0),
    ):
        with pytest.raises(ValueError, match=r"must be|not those"):
            extension().LadderMatrix(step, np.zeros(size, np.uint8), n, k, pool(1))
    with pytest.raises(ValueError, match="no step"):
        extension().LadderMatrix("levitated", np.zeros(4, np.uint8), 1, 1, pool(1))
    matrix = extension().LadderMatrix("naive", np.zeros(32, np.uint8), 2, 4, pool(1))
    with pytest.raises(ValueError, match="must be"):
        matrix.run(np.zeros((1, 5), np.float32), np.zeros((1, 2), np.float32), pool(1))
    with pytest.raises(ValueError, match="must be"):
        matrix.run(np.zeros((2, 4), np.float32), np.zeros((1, 2), np.float32), pool(1))


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.mark.parametrize("isa", FLAGS)
def test_objects_of_an_isa_share_no_symbols(tmp_path: Path, isa: str) -> None:
    """A weak symbol may replace the same one in code that every CPU runs. -O0 inlines nothing away."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not x86-64")
    sources = sorted((LADDER / isa).glob("*.cpp"))
    assert sources
    unit = tmp_path / "isa.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    command = [compiler(), "-std=c++17", "-O0", "-w", *FLAGS[isa], "-c", unit, "-o", tmp_path / "isa.o"]
    subprocess.run(command, check=True)
    symbols = subprocess.run(["nm", "-C", tmp_path / "isa.o"], capture_output=True, text=True, check=True).stdout
    assert f"rows_{'vnni' if isa == 'avx512_vnni' else 'avx2'}" in symbols
    assert [line for line in symbols.splitlines() if line[17:18] in ("W", "V", "w", "v", "u")] == []


def test_vnni_emulated(tmp_path: Path) -> None:
    if not SIMDE.exists():
        pytest.skip("no SIMDe headers (package libsimde-dev)")
    sources = [LADDER / "avx512_vnni" / "13_vnni.cpp", ROOT / "tests" / "native" / "ladder_check.cpp"]
    command = [compiler(), "-std=c++17", "-O0", "-w", "-DKBENCH_SIMDE", f"-I{LADDER.parent}", *sources]
    subprocess.run([*command, "-o", tmp_path / "check"], check=True)
    result = subprocess.run([tmp_path / "check"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout
    assert result.stdout == "0 wrong values\n"
