"""Compiles all GPU kernels for all chips, without one, and writes what became of them into docs/performance.md.

    python scripts/gpu_kernels_table.py                    # everything; the largest kernels take 2 s for each chip
    python scripts/gpu_kernels_table.py --kernel few_rows  # that kernel's rows; the others stay as they are
    python scripts/gpu_kernels_table.py --configuration Q4_K

What was compiled before is in Triton's cache (TRITON_CACHE_DIR). Exit code 1 if a configuration must not be kept: one
that spills, has no 16-byte loads or no tensor-core instructions where it should, or needs more shared memory than a
chip has.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from kbench.kernels.triton.chip import CHIPS
from kbench.kernels.triton.compiled import Compiled, compile_all
from kbench.kernels.triton.kept_kernel import KeptKernel
from kbench.kernels.triton.kernel_list import kept_kernels

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
_TABLE = re.compile(r"(<!-- table gpu_kernels -->\n).*?(<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|.*\n", re.MULTILINE)


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def row(kernel: KeptKernel, found: list[Compiled]) -> str:
    """A line of the table: ``found`` for each chip."""
    cells = [f"`{kernel.name}`", kernel.configuration, str(kernel.warps)]
    cells += [_range([c.wide_loads for c in found]), _range([c.tensor_core_instructions for c in found])]
    for chip, code in zip(CHIPS.values(), found, strict=True):
        share = chip.occupancy(code.registers, code.shared_bytes, kernel.warps)
        cells.append(f"{code.registers} · {code.shared_bytes / 1024:.3g} · {share:.0%}")
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", help="compile only this function; may be given again")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that compile at once")
    parser.add_argument("--configuration", default="", help="compile only configurations that begin so: Q4_K")
    options = parser.parse_args()
    text = DOCUMENT.read_text(encoding="utf-8")
    place = _TABLE.search(text)
    if place is None:
        print(f"{DOCUMENT.name}: no place for the table", file=sys.stderr)
        return 2
    kernels = kept_kernels()
    unknown = sorted(set(options.kernel or ()) - {kernel.name for kernel in kernels})
    if unknown:
        print(f"no kernel {', '.join(unknown)}; there are {sorted({k.name for k in kernels})}", file=sys.stderr)
        return 2
    asked = [kernel for kernel in kernels if options.kernel is None or kernel.name in options.kernel]
    asked = [kernel for kernel in asked if kernel.configuration.startswith(options.configuration)]
    rows = {(m[1], m[2]): m[0] for m in _ROW.finditer(place[0])}
    cases = [(kernel, chip) for kernel in asked for chip in CHIPS.values()]
    codes: list[Compiled] = []
    wrong = []
    for (kernel, chip), code in zip(cases, compile_all(cases, options.processes), strict=True):
        codes.append(code)
        wrong += [f"{kernel.name}, {kernel.configuration}, {chip.name}: {f}" for f in code.faults(kernel, chip)]
        if sys.stderr.isatty():
            print(f"\r{len(codes)} of {len(cases)}", end="", file=sys.stderr)
    for i, kernel in enumerate(asked):
        rows[kernel.name, kernel.configuration] = row(kernel, codes[i * len(CHIPS) : (i + 1) * len(CHIPS)])
    head = ["kernel", "configuration", "warps", "16-byte loads", "tensor-core instructions"]
    head += [chip.name for chip in CHIPS.values()]
    table = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    table += "".join(rows.get((kernel.name, kernel.configuration), "") for kernel in kernels)
    # The document may have changed meanwhile.
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(_TABLE.sub(lambda found: f"{found[1]}{table}{found[2]}", text), encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
