"""Every kernel, compiled for chips that are not here: no value leaves its registers, weights come 16 bytes at a time,
tensor cores multiply, and shared memory fits the chip.

All configurations are compiled by scripts/gpu_kernels_table.py, which keeps the numbers; here some are compiled again,
others whenever a kernel changes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kbench.core import Problem, default_threads
from kbench.kernels import implementation
from kbench.kernels.triton.chip import CHIPS, Chip, by_choice, nearest
from kbench.kernels.triton.compiled import Compiled, MachineCode, compile_all
from kbench.kernels.triton.kept_kernel import KeptKernel
from kbench.kernels.triton.kernel_digest import kernel_digest
from kbench.kernels.triton.kernel_list import kept_kernels
from kbench.kernels.triton.parameters import tile_rows
from kbench.kernels.triton.plane_matrix import product_kernel
from kbench.kernels.triton.planes import PLANE_FORMATS, chunk_width
from kbench.kernels.triton.tile import default_tile, kept_tiles

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from gpu_kernels_table import DATA, name_of, read_data

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not os.environ.get("KBENCH_REQUIRE"),
    reason="triton is not installed",
)


def turns() -> list[tuple[KeptKernel, Chip]]:
    """Of each function as many configurations as there are chips, or all if it has fewer, each for one chip that it is
    kept for: a kernel takes some 2 s. Where that begins among them the digests say: others come when sources change."""
    cases = []
    for _, group in itertools.groupby(kept_kernels(), key=lambda kernel: kernel.function):
        kernels = list(group)
        first = int(kernel_digest(kernels[0]), 16)
        for i in range(min(len(kernels), len(CHIPS))):
            kernel = kernels[(first + i * max(1, len(kernels) // len(CHIPS))) % len(kernels)]
            cases.append((kernel, CHIPS[kernel.chips[(first // 7 + i) % len(kernel.chips)]]))
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
    kept = read_data(DATA.read_text(encoding="utf-8")).get(name_of(kernel))
    if kept is not None and kept.compiler == version("triton"):
        assert found[i] == kept.chips.get(chip.capability, found[i]), f"{kernel.configuration}: the table has others"


def test_cases_are_different_ones() -> None:
    names = {kernel.function for kernel in kept_kernels()}
    assert {kernel.function for kernel, _ in CASES} == names
    assert len({(name_of(kernel), chip.capability) for kernel, chip in CASES}) == len(CASES)


def test_machine_code_is_counted() -> None:
    code = """
.text.few_rows:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/                   LDG.E.128 R4, [R2.64] ;
        /*0030*/               @P1 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0040*/              @UP0 LDGSTS.E.BYPASS.LTC128B.128 [R9], [R2.64] ;
        /*0050*/                   LDG.E.64 R4, [R2.64] ;
        /*0060*/                   STG.E.128 [R2.64], R4 ;
        /*0070*/                   STL [R1], R3 ;
                                   LDL R3, [R1] ;
        /*0090*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
"""
    assert MachineCode(64, 8, 128, b"").read(code) == Compiled(64, 8, 2, 128, 3, 1, 1)


def test_faults_are_found() -> None:
    lanes, cores = (next(k for k in kept_kernels() if k.name == name) for name in ("few_rows", "many_rows"))
    good = Compiled(64, 0, 0, 100, 1, 0, 0)
    assert good.faults(lanes, CHIPS[80]) == []
    assert good.faults(cores, CHIPS[80]) == ["0 tensor-core instructions"]
    bad = Compiled(255, 8, 2, 100 << 10, 0, 0, 1)
    assert len(bad.faults(lanes, CHIPS[86])) == 4
    assert len(bad.faults(lanes, CHIPS[90])) == 3, "which has more shared memory"
    assert len(dataclasses.replace(good, local_accesses=1).faults(lanes, CHIPS[80])) == 1


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


def test_other_chips_are_as_the_nearest_one() -> None:
    assert [nearest(*c) for c in ((8, 0), (8, 7), (8, 9), (10, 3), (12, 1), (7, 5))] == [80, 86, 89, 100, 120, 80]


def test_a_configuration_has_one_name_and_some_chip() -> None:
    names = [(kernel.function, kernel.configuration) for kernel in kept_kernels()]
    assert len(set(names)) == len(names)
    assert all(kernel.chips and {*kernel.chips} <= {*CHIPS} for kernel in kept_kernels())


def test_choices_know_their_chips() -> None:
    found = by_choice(lambda capability: ("all", "old" if capability < 90 else "new"))
    assert found == {"all": tuple(CHIPS), "old": (80, 86, 89), "new": (90, 100, 120)}


@pytest.mark.parametrize("quant", PLANE_FORMATS)
def test_kept_products_are_the_ones_that_run(quant: str) -> None:
    """Whatever the rows, what would be launched on a chip is in the list, and kept for that chip."""
    kept = [kernel for kernel in kept_kernels() if kernel.configuration.startswith(f"{quant},")]
    fmt = PLANE_FORMATS[quant]
    for capability in CHIPS:
        for m in (1, 2, 3, 4, 5, 16, 17, 100, 512):
            tile = default_tile(m, 5120, 5120, chunk_width(fmt, 5120), fmt, capability)
            launched = product_kernel(quant, dataclasses.replace(tile, parts=1))
            same = [k.chips for k in kept if dataclasses.replace(k, chips=launched.chips) == launched]
            assert same and capability in same[0], f"{m} rows on {capability}: {tile}"


def test_tiles_are_declared_and_only_kept_ones_can_be_named() -> None:
    few, many = (Problem.parse(f"linear(quant=Q4_K,n=5120,k=5120,tokens={tokens})") for tokens in (4, 5))
    item = implementation("triton")
    assert [p.candidates for p in item.block_parameters(few)] == [("auto", "lanes1", "lanes2", "lanes4")]
    assert [p.candidates for p in item.block_parameters(many)] == [("auto", "cores16", "cores32", "cores64")]
    assert item.block_parameters(Problem.parse("linear(quant=IQ2_S,n=5120,k=5120,tokens=4)")) == (), "torch multiplies"
    (everything,) = item.block_parameters()
    assert set(everything.candidates) >= {"lanes4", "cores16"} and everything.accepts(everything.default)
    for name in everything.candidates[1:]:
        rows = tile_rows({"tile": name})
        for quant, fmt in PLANE_FORMATS.items():
            width = chunk_width(fmt, 5120)
            for capability in CHIPS:
                m = 3 if name.startswith("lanes") else 100
                tile = default_tile(m, 5120, 5120, width, fmt, capability, rows)
                assert tile.block_m == rows and dataclasses.replace(tile, parts=1) in kept_tiles(width, fmt, capability)
                assert default_tile(103 - m, 5120, 5120, width, fmt, capability, rows) == default_tile(
                    103 - m, 5120, 5120, width, fmt, capability
                ), f"{quant}: a tile of the other kind is not taken"
