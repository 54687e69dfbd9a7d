"""Every kernel, compiled for chips that are not here: no value leaves its registers, weights come 16 bytes at a time,
tensor cores multiply, and shared memory fits the chip.

Functions of many configurations are compiled for each chip, in configurations that take turns.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os

import pytest

from kbench.core import default_threads
from kbench.kernels.triton.chip import CHIPS, Chip
from kbench.kernels.triton.compiled import Compiled, compile_all
from kbench.kernels.triton.kept_kernel import KeptKernel
from kbench.kernels.triton.kernel_list import kept_kernels
from kbench.kernels.triton.tile import default_tile, kept_tiles

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


def turns() -> list[tuple[KeptKernel, Chip]]:
    """For each function one configuration on each chip, the last of them among these: a kernel takes some 2 s. One of
    fewer configurations is compiled as often as it has some, for chips that take turns."""
    cases = []
    chips = itertools.cycle(CHIPS.values())
    for _, group in itertools.groupby(kept_kernels(), key=lambda kernel: kernel.function):
        kernels = list(group)
        # The golden ratio's steps: far from each other however many there are.
        at = [round(len(kernels) * (i * 0.618034 % 1)) - 1 for i in range(min(len(kernels), len(CHIPS)))]
        cases += [(kernels[i], next(chips)) for i in at]
    return cases


CASES = turns()


@pytest.fixture(scope="module")
def found() -> list[Compiled]:
    return list(compile_all(CASES, default_threads()))


@needs_triton
@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: f"{CASES[i][0].name}-{CASES[i][1].name}")
def test_machine_code(i: int, found: list[Compiled]) -> None:
    kernel, chip = CASES[i]
    assert found[i].faults(kernel, chip) == [], kernel.configuration


def test_faults_are_found() -> None:
    lanes, cores = (next(k for k in kept_kernels() if k.name == name) for name in ("few_rows", "many_rows"))
    good = Compiled(64, 0, 100, {"LDG.E.128": 1})
    assert good.faults(lanes, CHIPS[80]) == []
    assert good.faults(cores, CHIPS[80]) == ["0 tensor-core instructions"]
    bad = Compiled(255, 8, 100 << 10, {"LDG.E.64": 1, "LDL": 2, "HMMA.16816.F32": 1})
    assert len(bad.faults(lanes, CHIPS[86])) == 4
    assert len(bad.faults(lanes, CHIPS[90])) == 3, "which has more shared memory"


def test_occupancy() -> None:
    # By NVIDIA's calculator: registers, shared memory, warps and blocks each as what limits.
    assert CHIPS[80].occupancy(registers=32, shared_bytes=0, warps=4) == 1
    assert CHIPS[80].occupancy(registers=64, shared_bytes=0, warps=4) == 0.5
    assert CHIPS[80].occupancy(registers=65, shared_bytes=0, warps=4) == 7 * 4 / 64
    assert CHIPS[86].occupancy(registers=32, shared_bytes=0, warps=1) == 16 / 48
    assert CHIPS[90].occupancy(registers=32, shared_bytes=75 << 10, warps=8) == 3 * 8 / 64
    assert CHIPS[90].occupancy(registers=32, shared_bytes=76 << 10, warps=8) == 2 * 8 / 64
    assert CHIPS[90].occupancy(registers=32, shared_bytes=227 << 10, warps=8) == 8 / 64
    assert CHIPS[120].occupancy(registers=255, shared_bytes=0, warps=8) == 8 / 48


def test_a_configuration_has_one_name() -> None:
    names = [(kernel.function, kernel.configuration) for kernel in kept_kernels()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 16, 17, 100, 512])
def test_kept_tiles_are_the_ones_that_run(m: int, width: int) -> None:
    tile = default_tile(m, 5120, 5120, width)
    assert dataclasses.replace(tile, parts=1) in kept_tiles(width)
