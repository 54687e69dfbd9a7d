"""Compiles all GPU kernels for all chips, without one, and writes what became of them into docs/performance.md.

    python scripts/gpu_kernels_table.py                    # what changed since the last time, or was never compiled
    python scripts/gpu_kernels_table.py --kernel few_rows  # of that function alone
    python scripts/gpu_kernels_table.py --configuration Q4_K
    python scripts/gpu_kernels_table.py --check            # compiles nothing: is the table whole, and without a fault?

Everything anew takes some 20 minutes of a processor. Numbers go to docs/gpu_kernels.jsonl as they come, each under
a digest of what it was compiled from, so that a run that was ended goes on where it was. Exit code 1 if a configuration
must not be kept: one that spills, has no 16-byte loads or no tensor-core instructions where it should, or needs more
shared memory than a chip has; or, for ``--check``, if the table is not what the sources say.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

from kbench.core import write_whole
from kbench.kernels.triton.chip import CHIPS, Chip
from kbench.kernels.triton.compiled import Compiled, compile_all
from kbench.kernels.triton.kept_kernel import KeptKernel
from kbench.kernels.triton.kernel_digest import kernel_digest
from kbench.kernels.triton.kernel_list import kept_kernels

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT, DATA = DOCS / "performance.md", DOCS / "gpu_kernels.jsonl"
# What a chip's numbers stand for, in this order.
FIELDS = [each.name for each in fields(Compiled)]
_TABLE = re.compile(r"(<!-- table gpu_kernels -->\n).*?(<!-- end -->)", re.DOTALL)

# Function and configuration.
Name = tuple[str, str]


@dataclass(slots=True)
class Entry:
    """What was compiled of a configuration.

    Attributes:
        digest: of what it was compiled from.
        compiler: Triton's version.
    """

    digest: str
    compiler: str
    chips: dict[int, Compiled] = field(default_factory=dict)


def name_of(kernel: KeptKernel) -> Name:
    return kernel.name, kernel.configuration


def read_data(text: str) -> dict[Name, Entry]:
    """Every configuration in the file; none if its numbers are others than ``FIELDS``."""
    lines = [json.loads(line) for line in text.splitlines()]
    if not lines or lines[0].get("numbers") != FIELDS:
        return {}
    return {
        (line["kernel"], line["configuration"]): Entry(
            line["digest"], line["compiler"], {int(c): Compiled(*numbers) for c, numbers in line["chips"].items()}
        )
        for line in lines[1:]
    }


def write_data(kernels: Iterable[KeptKernel], entries: dict[Name, Entry]) -> str:
    """The file of those of ``entries`` that are kept, in the order of ``kernels``; in each what is kept for a chip."""
    lines: list[dict[str, object]] = [{"numbers": FIELDS}]
    for kernel in kernels:
        entry = entries.get(name_of(kernel))
        if entry is not None:
            chips = {str(c): list(astuple(entry.chips[c])) for c in kernel.chips if c in entry.chips}
            names = {"kernel": kernel.name, "configuration": kernel.configuration}
            lines.append({**names, "digest": entry.digest, "compiler": entry.compiler, "chips": chips})
    return "".join(json.dumps(line) + "\n" for line in lines)


def missing(kernels: Iterable[KeptKernel], entries: dict[Name, Entry], compiler: str) -> list[tuple[KeptKernel, Chip]]:
    """What ``entries`` have not, or of other sources or by another compiler; ``compiler`` "": by any."""
    found = []
    for kernel in kernels:
        entry = entries.get(name_of(kernel))
        same = entry is not None and entry.digest == kernel_digest(kernel) and compiler in ("", entry.compiler)
        done = entry.chips if entry is not None and same else {}
        found += [(kernel, CHIPS[c]) for c in kernel.chips if c not in done]
    return found


def faults(kernels: Iterable[KeptKernel], entries: dict[Name, Entry]) -> list[str]:
    """Of every chip that a configuration is kept for."""
    found = []
    for kernel in kernels:
        entry = entries.get(name_of(kernel))
        for c in kernel.chips if entry is not None else ():
            code = entry.chips.get(c)  # type: ignore[union-attr]
            wrong = code.faults(kernel, CHIPS[c]) if code is not None else ()
            found += [f"{kernel.name}, {kernel.configuration}, {CHIPS[c].name}: {text}" for text in wrong]
    return found


def _range(numbers: list[int]) -> str:
    if not numbers:
        return "?"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def row(kernel: KeptKernel, chips: dict[int, Compiled]) -> str:
    """A line of the table. On a chip with a dash another configuration runs; one with ? was not compiled yet."""
    found = [chips[c] for c in kernel.chips if c in chips]
    cells = [f"`{kernel.name}`", kernel.configuration, str(kernel.warps)]
    cells += [_range([c.wide_loads for c in found]), _range([c.tensor_core_instructions for c in found])]
    for chip in CHIPS.values():
        code = chips.get(chip.capability)
        if code is None or chip.capability not in kernel.chips:
            cells.append("?" if chip.capability in kernel.chips else "–")
            continue
        share = chip.occupancy(code.registers, code.shared_bytes, kernel.warps)
        cells.append(f"{code.registers} · {code.shared_bytes / 1024:.3g} · {share:.0%}")
    return f"| {' | '.join(cells)} |\n"


def table(kernels: Sequence[KeptKernel], entries: dict[Name, Entry]) -> str:
    """What stands in the document."""
    chips = {
        name_of(kernel): entries[name_of(kernel)].chips if name_of(kernel) in entries else {} for kernel in kernels
    }
    n = sum(len(kernel.chips) for kernel in kernels)
    done = sum(c in chips[name_of(kernel)] for kernel in kernels for c in kernel.chips)
    compilers = ", ".join(sorted({entry.compiler for entry in entries.values()}))
    head = ["kernel", "configuration", "warps", "16-byte loads", "tensor-core instructions"]
    head += [chip.name for chip in CHIPS.values()]
    counted = str(n) if done == n else f"{done} of {n}"
    caption = f"{counted} machine codes of {len(kernels)} configurations, by Triton {compilers}:\n\n"
    rows = "".join(row(kernel, chips[name_of(kernel)]) for kernel in kernels)
    return f"{caption}| {' | '.join(head)} |\n|{'---|' * len(head)}\n{rows}"


def with_table(text: str, made: str) -> str:
    """The document with the table ``made``."""
    return _TABLE.sub(lambda found: f"{found[1]}{made}{found[2]}", text)


def check(kernels: Sequence[KeptKernel], entries: dict[Name, Entry], document: str) -> list[str]:
    """What is wrong with the table; nothing is compiled."""
    wrong = [
        f"{kernel.name}, {kernel.configuration}, {chip.name}: not compiled as it is now"
        for kernel, chip in missing(kernels, entries, "")
    ]
    gone = entries.keys() - {name_of(kernel) for kernel in kernels}
    wrong += [f"{', '.join(name)}: no longer kept" for name in sorted(gone)]
    wrong += faults(kernels, entries)
    if with_table(document, table(kernels, entries)) != document:
        wrong.append(f"the table in {DOCUMENT.name} is not that of {DATA.name}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", help="compile only this function; may be given again")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that compile at once")
    parser.add_argument("--configuration", default="", help="compile only configurations that begin so: Q4_K")
    parser.add_argument("--check", action="store_true", help="compile nothing; exit code 1 if the table is not whole")
    options = parser.parse_args()
    kernels = kept_kernels()
    entries = read_data(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    if options.check:
        wrong = check(kernels, entries, DOCUMENT.read_text(encoding="utf-8"))
        print("\n".join(wrong) or "whole, and without a fault", file=sys.stderr)
        return 1 if wrong else 0
    unknown = sorted(set(options.kernel or ()) - {kernel.name for kernel in kernels})
    if unknown:
        print(f"no kernel {', '.join(unknown)}; there are {sorted({k.name for k in kernels})}", file=sys.stderr)
        return 2
    asked = [kernel for kernel in kernels if options.kernel is None or kernel.name in options.kernel]
    asked = [kernel for kernel in asked if kernel.configuration.startswith(options.configuration)]
    compiler = version("triton")
    cases = missing(asked, entries, compiler)
    for i, ((kernel, chip), code) in enumerate(zip(cases, compile_all(cases, options.processes), strict=True)):
        fresh = Entry(kernel_digest(kernel), compiler)
        entry = entries.get(name_of(kernel), fresh)
        if (entry.digest, entry.compiler) != (fresh.digest, fresh.compiler):
            entry = fresh
        entry.chips[chip.capability] = code
        entries[name_of(kernel)] = entry
        write_whole(DATA, write_data(kernels, entries).encode())
        if sys.stderr.isatty():
            print(f"\r{i + 1} of {len(cases)}", end="", file=sys.stderr)
    made = table(kernels, entries)
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), made), encoding="utf-8")
    wrong = faults(asked, entries)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
