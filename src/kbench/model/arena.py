"""Where each value of a list of calls lives in one buffer: values whose lifetimes do not meet share bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import Device, OpCall, Value

# A cache line, and the widest vector register.
ALIGNMENT = 64
_ELEMENT_BYTES = {"f32": 4, "i32": 4}


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offset of each value, and the size of the buffer. A value is row-major ``[rows, width]``, unpadded."""

    offsets: Mapping[str, int]
    n_bytes: int


def plan_arena(calls: Sequence[OpCall], tokens: int, device: Device | None = None, keep: Collection[str] = ()) -> Arena:
    """The arena for ``calls`` of ``tokens`` tokens; with ``device``, only for the values that are made there.

    A value lives from the call that makes it through the last that reads it; one that nobody reads (the logits), or
    whose name is in ``keep``, lives to the end. A call's outputs never overlap its inputs. The call after a value's
    last reader may be given its bytes: whoever runs calls without a barrier between them must keep that order too.
    """
    last_use = {name: index for index, call in enumerate(calls) for name in call.inputs}
    last_use |= dict.fromkeys(keep, len(calls))
    live: list[tuple[int, int, int]] = []  # (begin, end, last use), in order of begin
    offsets: dict[str, int] = {}
    n_bytes = 0
    for index, call in enumerate(calls):
        live = [item for item in live if item[2] >= index]
        if device is not None and call.device != device:
            continue
        for value in call.outputs:
            size = _size(value, tokens)
            begin = _first_gap(live, size)
            offsets[value.name] = begin
            n_bytes = max(n_bytes, begin + size)
            live.append((begin, begin + size, last_use.get(value.name, len(calls))))
            live.sort()
    return Arena(offsets, n_bytes)


def _size(value: Value, tokens: int) -> int:
    rows = 1 if value.rows == "one" else tokens
    size = rows * value.width * _ELEMENT_BYTES[value.dtype]
    return size + -size % ALIGNMENT


def _first_gap(live: Sequence[tuple[int, int, int]], size: int) -> int:
    begin = 0
    for occupied_begin, occupied_end, _ in live:
        if occupied_begin - begin >= size:
            break
        begin = max(begin, occupied_end)
    return begin
