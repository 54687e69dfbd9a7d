"""The table of GPU kernels in docs/performance.md is that of today's kernels, all of them, and has no fault."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from kbench.kernels.triton import kernel_digest as digests
from kbench.kernels.triton.chip import CHIPS
from kbench.kernels.triton.compiled import Compiled
from kbench.kernels.triton.kernel_digest import kernel_digest
from kbench.kernels.triton.kernel_list import kept_kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from gpu_kernels_table import (
    DATA,
    DOCUMENT,
    Entry,
    check,
    missing,
    name_of,
    read_data,
    table,
    with_table,
    write_data,
)  # fmt: skip

KERNELS = kept_kernels()
GOOD = Compiled(64, 0, 0, 1024, 4, 4, 0)


def made() -> dict[tuple[str, str], Entry]:
    """As if everything had been compiled, without a fault."""
    code = {k.name: dataclasses.replace(GOOD, tensor_core_instructions=8 * k.tensor_cores) for k in KERNELS}
    return {name_of(k): Entry(kernel_digest(k), "9.9", dict.fromkeys(k.chips, code[k.name])) for k in KERNELS}


def document(entries: dict[tuple[str, str], Entry]) -> str:
    return with_table("before\n<!-- table gpu_kernels -->\nold\n<!-- end -->\nafter\n", table(KERNELS, entries))


def test_the_table_is_whole_and_without_a_fault() -> None:
    """If not: python scripts/gpu_kernels_table.py"""
    assert check(KERNELS, read_data(DATA.read_text("utf-8")), DOCUMENT.read_text("utf-8")) == []


def test_the_file_is_written_as_the_script_writes_it() -> None:
    text = DATA.read_text("utf-8")
    assert write_data(KERNELS, read_data(text)) == text


def test_what_is_wrong_is_found() -> None:
    right = made()
    assert check(KERNELS, right, document(right)) == []
    kernel = KERNELS[0]
    name, chip = name_of(kernel), kernel.chips[0]

    def wrong_with(entries: dict[tuple[str, str], Entry]) -> list[str]:
        return check(KERNELS, entries, document(entries))

    assert len(wrong_with({n: entry for n, entry in right.items() if n != name})) == len(kernel.chips)
    assert len(wrong_with({**right, name: dataclasses.replace(right[name], digest="0" * 12)})) == len(kernel.chips)
    assert "no longer kept" in wrong_with({**right, ("few_rows", "Q9_9, 1 x 1"): right[name]})[0]
    spilled = dataclasses.replace(right[name].chips[chip], spilled_bytes=8)
    found = wrong_with({**right, name: dataclasses.replace(right[name], chips={**right[name].chips, chip: spilled})})
    assert found == [f"{name[0]}, {name[1]}, {CHIPS[chip].name}: 8 bytes of a thread spill"]
    others = {c: code for c, code in right[name].chips.items() if c != chip}
    assert len(wrong_with({**right, name: dataclasses.replace(right[name], chips=others)})) == 1
    assert check(KERNELS, right, document({})) == ["the table in performance.md is not that of gpu_kernels.jsonl"]


def test_what_was_not_compiled_yet_is_said() -> None:
    entries, name = made(), name_of(KERNELS[0])
    del entries[name]
    assert len(check(KERNELS, entries, document(entries))) == len(KERNELS[0].chips)
    line = next(line for line in table(KERNELS, entries).splitlines() if name[1] in line)
    assert line.count("?") == 2 + len(KERNELS[0].chips)
    assert f" of {sum(len(kernel.chips) for kernel in KERNELS)} machine codes" in table(KERNELS, entries)


def test_a_run_goes_on_where_it_was() -> None:
    entries, (first, second) = made(), KERNELS[:2]
    entries[name_of(first)].chips.pop(first.chips[-1])
    assert missing(KERNELS, read_data(write_data(KERNELS, entries)), "9.9") == [(first, CHIPS[first.chips[-1]])]
    entries[name_of(second)].compiler = "9.8"
    assert len(missing(KERNELS, entries, "9.9")) == 1 + len(second.chips)


def test_a_chip_that_a_configuration_is_not_kept_for_has_no_numbers() -> None:
    kernel = dataclasses.replace(KERNELS[0], chips=(90, 100))
    entries = made()
    line = table([kernel], entries).splitlines()[-1]
    assert line.count("–") == len(CHIPS) - 2 and line.count("64 · 1 ·") == 2
    assert read_data(write_data([kernel], entries))[name_of(kernel)].chips.keys() == {90, 100}


@pytest.fixture()
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the kernels' folder, which digests are made of."""
    folder = tmp_path / "triton"
    shutil.copytree(Path(digests.__file__).parent, folder)
    monkeypatch.setattr(digests, "_HERE", folder)
    return folder


def changed(folder: Path, file: str, old: str, new: str) -> set[str]:
    """Functions whose digest is another once ``old`` is ``new``."""
    before = {name_of(k): kernel_digest(k) for k in KERNELS}
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), "utf-8")
    for cached in (digests._source, digests._names):
        cached.cache_clear()
    return {name_of(k)[0] for k in KERNELS if kernel_digest(k) != before[name_of(k)]}


@pytest.fixture(autouse=True)
def fresh() -> None:
    for cached in (digests._source, digests._names):
        cached.cache_clear()


def test_a_digest_follows_what_a_kernel_needs(sources: Path) -> None:
    of_planes = {"few_rows", "many_rows", "few_gate_up", "few_down", "many_products"}
    assert changed(sources, "plane_kernels.py", "8388608.0", "8388609.0") == of_planes, "and across files"
    assert changed(sources, "dequantize_asm.py", "0x64086408", "0x64006400") == {"int4_product"}, (
        "what a constant is of"
    )
    assert changed(sources, "sampling_kernels.py", "rank = tl.arange(0, K)", "rank = tl.arange(0, K) + 0") == {
        "largest_of_row"
    }


def test_words_and_places_make_no_difference(sources: Path) -> None:
    assert changed(sources, "plane_kernels.py", "@triton.jit", "# Of a word.\n\n\n@triton.jit") == set()
    assert (
        changed(sources, "plane_kernels.py", '    """``out[part, :m] = x', '    """Now: ``out[part, :m] = x') == set()
    )


def test_a_digest_is_of_what_is_compiled_in() -> None:
    kernel = KERNELS[0]
    other = dataclasses.replace(kernel, warps=2 * kernel.warps)
    assert kernel_digest(other) != kernel_digest(kernel)
    renamed = dataclasses.replace(kernel, configuration="another name", chips=(90,), wide_loads=False)
    assert kernel_digest(renamed) == kernel_digest(kernel)
