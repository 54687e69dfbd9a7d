"""Forms of a request that differ in what rules cannot say: the type of the cache, and the tokens of a prefill step.

Both are options of whoever runs the model. Each form is planned whole, with a placement of its own; what it needs
beyond the others is measured (of another cache type attention alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kbench.core import KV_TYPES, OverBudget, Unsupported, UserError, check_kv

from .placed import Placed
from .plan import Plan
from .request import DEFAULT_CHUNK, TuneRequest, workload

AUTO = "auto"

# Smaller steps do not fill a matrix product; larger ones gain nothing on a CPU and need more workspace.
CHUNKS = (128, DEFAULT_CHUNK, 512, 1024)
_MOST_TOKENS = 1 << 16

# Another form than the first that was asked for must gain this much.
_WORTH_IT = 0.02

# Plans a request and places it.
Place = Callable[[TuneRequest], tuple[Plan, Placed]]


@dataclass(frozen=True, slots=True)
class Form:
    """What one form comes to: ``seconds`` of the workload; None where it is over the budgets."""

    kv: str
    chunk: int
    seconds: float | None

    @property
    def fields(self) -> dict[str, Any]:
        """For the JSON object."""
        return {"kv": self.kv, "chunk": self.chunk, "workload_seconds": self.seconds}


def parse_kv(text: str, where: str = "--kv") -> tuple[str, ...]:
    """Cache types to choose from, the usual one first: ``f16``, ``f16,q8_0``, or ``auto`` for all.

    Raises:
        UserError: an unknown type.
    """
    if text == AUTO:
        return tuple(sorted(KV_TYPES, key=lambda kv: kv != "f16"))
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        check_kv(name, where=where)
    return names


def parse_chunks(text: str, where: str = "--chunk") -> tuple[int, ...]:
    """Tokens of a prefill step to choose from, the usual ones first: ``256``, ``256,512``, or ``auto``.

    Raises:
        UserError: what is no count.
    """
    if text == AUTO:
        return tuple(sorted(CHUNKS, key=lambda chunk: chunk != DEFAULT_CHUNK))
    found = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 8 and 1 <= int(digits) <= _MOST_TOKENS):
            accepted = f"counts of tokens up to {_MOST_TOKENS} by commas, or auto"
            raise UserError(f"{part.strip()!r}", where=where, accepted=accepted)
        found.append(int(digits))
    return tuple(dict.fromkeys(found))


def best_form(
    request: TuneRequest, place: Place, late: Callable[[], bool] = lambda: False
) -> tuple[TuneRequest, Plan, Placed, list[Form]]:
    """The fastest form of ``request`` that fits, its placement, and all forms that were tried: cache types first, then
    steps with the best of them.

    ``late``: whether no more forms are to be tried; one always is.

    Raises:
        OverBudget: no form fits; the message is that of the first.
        Unsupported: no cache of the first type can hold the model's vectors.
    """
    tried: list[Form] = []
    best: tuple[TuneRequest, Plan, Placed] | None = None
    refused: OverBudget | Unsupported | None = None

    def try_all(forms: Iterable[TuneRequest]) -> None:
        nonlocal best, refused
        for form in forms:
            chunk = workload(form).chunk
            if (form.kv, chunk) in {(known.kv, known.chunk) for known in tried} or (tried and late()):
                continue
            try:
                plan, placed = place(form)
            except (OverBudget, Unsupported) as error:
                if isinstance(error, Unsupported) and not tried:
                    raise
                refused = refused or error
                tried.append(Form(form.kv, chunk, None))
                continue
            tried.append(Form(form.kv, chunk, placed.workload_seconds))
            if best is None or placed.workload_seconds < (1 - _WORTH_IT) * best[2].workload_seconds:
                best = form, plan, placed

    try_all(replace(request, kv=kv, chunk=request.chunks[0]) for kv in request.kvs)
    base = best[0] if best is not None else request
    try_all(replace(base, chunk=chunk) for chunk in request.chunks)
    if best is None:
        assert refused is not None
        raise refused
    return *best, tried
