"""Writes the tables of docs/kernels.md from what the kernels declare.

    python scripts/kernel_tables.py            # rewrites the tables
    python scripts/kernel_tables.py --check    # exit code 1 if a table is stale

A table stands between `<!-- table NAME -->` and `<!-- end -->`. It says nothing about the machine that it is made on.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kbench.core import OPS, Problem
from kbench.kernels import WEIGHT_TYPES, BlockParameter, implementation, isa_tests, isas
from kbench.kernels.cpu import extension

DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def instruction_sets() -> str:
    tests = isa_tests()
    rows = ((f"`cpu.{name}`", tests[name]) for name, _ in reversed(isas()))
    return _markdown(("implementation", "its kernels in the tests"), rows)


def storage_types() -> str:
    packed = set(implementation("cpu.scalar").kernel_sources())  # type: ignore[attr-defined]
    others = [name for name in WEIGHT_TYPES if name not in packed]
    native = [name for name in others if _takes("cpu.scalar", name)]
    rows = [
        ("kernels on packed weights", " ".join(name for name in WEIGHT_TYPES if name in packed)),
        ("native, dequantised in the cache", " ".join(native)),
        ("`torch` and `reference` only, dequantised", " ".join(name for name in others if name not in native)),
    ]
    return _markdown(("how", "storage types"), (row for row in rows if row[1]))


def _takes(name: str, quant: str) -> bool:
    return implementation(name).supports(Problem.make("linear", quant=quant, n=256, k=256, tokens=1)).ok


def parameters() -> str:
    item = implementation("cpu.scalar")
    rows = (
        (
            f"`{p.name}`",
            f"{p.default} {p.unit}",
            p.accepted,
            ", ".join(map(str, p.candidates)),
            ", ".join(f"`{op}`" for op in _ops(p)),
            p.reason,
        )
        for p in item.block_parameters()
    )
    return _markdown(("parameter", "default", "accepted", "worth trying", "operations", "why this default"), rows)


def _ops(parameter: BlockParameter) -> list[str]:
    """Operations that some implementation changes by ``parameter`` for some storage type."""
    declared = extension().block_parameters
    return [
        op
        for op in OPS
        if any(
            fields["name"] == parameter.name
            for isa, _ in isas()
            for quant in ("", *WEIGHT_TYPES)
            for fields in declared(isa, op, quant)
        )
    ]


TABLES: dict[str, Callable[[], str]] = {
    "instruction_sets": instruction_sets,
    "storage_types": storage_types,
    "parameters": parameters,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a table is stale")
    check = parser.parse_args().check
    before = DOCUMENT.read_text(encoding="utf-8")
    missing = set(TABLES) - {found[2] for found in _TABLE.finditer(before)}
    if missing:
        print(f"{DOCUMENT.name}: no place for {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    after = _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", before)
    if before == after:
        return 0
    if check:
        print(f"{DOCUMENT.name}: a table is stale; run python scripts/{Path(__file__).name}", file=sys.stderr)
        return 1
    DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
