"""Quantization types as GGUF names and numbers them, with their block sizes.

Source: the GGUF specification and ggml's type table. A row of ``n`` weights is stored as
``n / block_elements`` blocks of ``block_bytes`` each.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Unsupported, did_you_mean


@dataclass(frozen=True, slots=True)
class QuantTraits:
    """One storage type: ``ggml_id`` in the file, weights per block, bytes per block."""

    name: str
    ggml_id: int
    block_elements: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_elements

    @property
    def is_float(self) -> bool:
        return self.name in ("F64", "F32", "F16", "BF16")

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of ``n`` weights; ``n`` must be a multiple of the block."""
        if n % self.block_elements:
            raise Unsupported(f"a row of {n} weights is no multiple of {self.name}'s block of {self.block_elements}")
        return n // self.block_elements * self.block_bytes


def _traits(table: str) -> dict[str, QuantTraits]:
    rows = (line.split() for line in table.strip().splitlines())
    return {name: QuantTraits(name, int(i), int(elements), int(size)) for name, i, elements, size in rows}


#            name    id  weights  bytes per block
QUANTS = _traits("""
             F32      0    1    4
             F16      1    1    2
             Q4_0     2   32   18
             Q4_1     3   32   20
             Q5_0     6   32   22
             Q5_1     7   32   24
             Q8_0     8   32   34
             Q8_1     9   32   36
             Q2_K    10  256   84
             Q3_K    11  256  110
             Q4_K    12  256  144
             Q5_K    13  256  176
             Q6_K    14  256  210
             Q8_K    15  256  292
             IQ2_XXS 16  256   66
             IQ2_XS  17  256   74
             IQ3_XXS 18  256   98
             IQ1_S   19  256   50
             IQ4_NL  20   32   18
             IQ3_S   21  256  110
             IQ2_S   22  256   82
             IQ4_XS  23  256  136
             I8      24    1    1
             I16     25    1    2
             I32     26    1    4
             I64     27    1    8
             F64     28    1    8
             IQ1_M   29  256   56
             BF16    30    1    2
             TQ1_0   34  256   54
             TQ2_0   35  256   66
             MXFP4   39   32   17
             NVFP4   40   64   36
             Q1_0    41  128   18
             Q2_0    42   64   18
""")

QUANTS_BY_ID = {traits.ggml_id: traits for traits in QUANTS.values()}

# Ids that once were GGUF types and must be told apart from nonsense: the reader names what they were.
REMOVED_QUANT_IDS = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip


def quant(name: str) -> QuantTraits:
    """The traits of type ``name`` (as GGUF spells it, e.g. ``Q4_K``)."""
    try:
        return QUANTS[name]
    except KeyError:
        raise Unsupported(
            f"unknown quant type {name!r}", accepted=", ".join(QUANTS), todo=did_you_mean(name, QUANTS)
        ) from None
