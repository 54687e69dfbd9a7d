"""Which experts a text visits: a model reads it, and what its routers chose is counted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kbench import __version__
from kbench.core import Unsupported, UserError
from kbench.measure import host
from kbench.model import ModelDescriptor
from kbench.results import Routing

SEED = 1

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class RoutedSession(Protocol):
    """What of the engine's ``Session`` is used here."""

    @property
    def descriptor(self) -> ModelDescriptor: ...

    @property
    def chunk(self) -> int: ...

    def experts(self, tokens: Sequence[int]) -> Mapping[str, npt.NDArray[np.int32]]: ...

    def reset(self) -> None: ...


def text_name(text: str) -> str:
    """``text`` as a key has it: ``sha256:`` and the first digits of its hash."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def random_tokens(vocab: int, n_tokens: int) -> list[int]:
    """The seeded tokens that stand in for a text, which ``text`` then calls ``random:SEED``."""
    return [int(token) for token in np.random.default_rng(SEED).integers(0, vocab, n_tokens)]


def record_routing(
    session: RoutedSession,
    ids: Sequence[int],
    text: str,
    context: int,
    progress: Callable[[int, int], None] | None = None,
) -> Routing:
    """Visits of each expert while the model reads ``ids``, ``context`` tokens at a time, each time from the beginning.

    ``text`` is what the key says of where the tokens are from. ``progress`` hears of tokens read, of how many.

    Raises:
        UserError: no tokens, or one that is outside the vocabulary.
        Unsupported: the model has no routed experts.
    """
    model = session.descriptor
    if model.moe is None:
        raise Unsupported("no routed experts", where=model.name, accepted="a mixture of experts")
    if not ids:
        raise UserError("no tokens", where="text", accepted="at least one")
    counts: dict[int, npt.NDArray[np.int64]] = {}
    tell = progress or (lambda done, total: None)
    for begin in range(0, len(ids), context):
        session.reset()
        window = ids[begin : begin + context]
        for first in range(0, len(window), session.chunk):
            for router, chosen in session.experts(window[first : first + session.chunk]).items():
                found = _LAYER.search(f"{router}.")
                assert found is not None  # routers are in layers
                seen = np.bincount(chosen.ravel(), minlength=model.moe.experts)
                counts[int(found[1])] = counts.get(int(found[1]), np.zeros_like(seen)) + seen
            tell(begin + min(first + session.chunk, len(window)), len(ids))
    session.reset()
    about = {
        "host_id": host().host_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "kbench_version": __version__,
    }
    visits = {layer: tuple(int(n) for n in of) for layer, of in sorted(counts.items())}
    return Routing(model.name, model.quant, text, model.moe.experts, model.moe.top_k, len(ids), visits, about)
