"""Types of the cache, named as GGML names them, and the bytes that cached vectors take."""

from __future__ import annotations

from .errors import Unsupported, UserError, did_you_mean
from .quant import quant

# Cache type -> the storage type of a cached vector. q8_0: blocks of 32 along the vector, a scale for each.
KV_TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}


def check_kv(kv: str, *widths: int, where: str = "") -> None:
    """Refuses what no cache of type ``kv`` can hold.

    Args:
        widths: elements of the vectors that are cached, or read back as one.

    Raises:
        UserError: an unknown type.
        Unsupported: vectors that are no whole number of the type's blocks.
    """
    if kv not in KV_TYPES:
        raise UserError(
            f"cache type {kv!r}", where=where, accepted=", ".join(KV_TYPES), todo=did_you_mean(kv, KV_TYPES)
        )
    block = quant(KV_TYPES[kv]).block_elements
    for width in widths:
        if width % block:
            raise Unsupported(
                f"a {kv} cache of vectors of {width}", where=where, accepted=f"multiples of {block}", todo="use f16"
            )


def kv_bytes(kv: str, *widths: int) -> int:
    """Bytes of one cached vector for each of ``widths`` elements.

    Raises:
        UserError, Unsupported: as ``check_kv``.
    """
    check_kv(kv, *widths)
    return sum(quant(KV_TYPES[kv]).row_bytes(width) for width in widths)
