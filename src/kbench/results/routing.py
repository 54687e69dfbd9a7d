"""How often each expert was visited: the JSON object ``kbench.routing/1``, recorded from a model that read a text.

    {"schema": "kbench.routing/1", "key": "routing(model=...,text=sha256:...,tokens=4096)", "experts": 64, "top_k": 6,
     "tokens": 4096, "layers": {"1": [393, 12, ...], ...}, ...}

Each token visits ``top_k`` different experts in each layer that has any, so that a layer's visits add up to
``tokens * top_k`` and none exceeds ``tokens``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbench.core import CorruptFile, UserError, write_whole

from .record import case_key
from .shape import ListOf, MapOf, Number, Object, Text, check_shape

SCHEMA = "kbench.routing/1"

# A thousand experts in each of a hundred layers take half a megabyte.
_MAX_BYTES = 16 << 20
_MAX_EXPERTS, _MAX_LAYERS, _MAX_TOKENS = 1 << 16, 1 << 12, 1 << 40

_ROUTING = Object(
    {
        "schema": Text((SCHEMA,)), "model": Text(), "quant": Text(), "text": Text(), "experts": Number(1),
        "top_k": Number(1), "tokens": Number(1), "layers": MapOf(ListOf(Number(), _MAX_EXPERTS), _MAX_LAYERS),
    },
    {"key": Text(), "host_id": Text(), "created": Text(), "kbench_version": Text()},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routing:
    """Visits of each expert, by layer.

    Attributes:
        model, quant: what ran.
        text: what it read: ``sha256:`` and the first digits of the text's hash, or ``random`` and the seed.
        experts, top_k: of each layer that has any.
        tokens: how many were read.
        visits: by layer number, one count an expert.
        about: where and when it was recorded.
    """

    model: str
    quant: str
    text: str
    experts: int
    top_k: int
    tokens: int
    visits: Mapping[int, tuple[int, ...]]
    about: Mapping[str, str]

    @property
    def key(self) -> str:
        """What was recorded, as in ``routing(model=tiny,quant=Q4_K_M,text=random:1,tokens=4096)``."""
        return case_key("routing", {n: getattr(self, n) for n in ("model", "quant", "text", "tokens")})

    def share_of_hottest(self, share: float) -> float:
        """Of all visits, those to each layer's most visited ``share`` of experts."""
        n = round(share * self.experts)
        hottest = sum(sum(sorted(counts, reverse=True)[:n]) for counts in self.visits.values())
        return hottest / (self.tokens * self.top_k * len(self.visits))


def routing_path(root: Path, routing: Routing, host_id: str) -> Path:
    """Where the store under ``root`` keeps ``routing``: a recording of the same replaces it."""
    name = re.sub(r"[^\w.-]+", "-", routing.model).strip("-.")[:60].lower() or "model"
    digest = hashlib.sha256(routing.key.encode()).hexdigest()[:8]
    return root / host_id / f"routing-{name}-{digest}.json"


def write_routing(path: Path, routing: Routing) -> None:
    """The file is whole or as it was.

    Raises:
        UserError: the place cannot be written.
    """
    fields = {
        "schema": SCHEMA, "key": routing.key, "model": routing.model, "quant": routing.quant, "text": routing.text,
        "experts": routing.experts, "top_k": routing.top_k, "tokens": routing.tokens,
        "layers": {str(layer): list(counts) for layer, counts in routing.visits.items()}, **routing.about,
    }  # fmt: skip
    write_whole(path, (json.dumps(fields, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def read_routing(path: Path) -> Routing:
    """What `kbench bench --routing` wrote, every number checked.

    Raises:
        UserError: there is no such file.
        CorruptFile: it is no routing histogram, or its counts cannot be.
    """
    where, accepted = str(path), "what `kbench bench --routing` wrote"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=where, accepted=accepted) from None
    if len(data) > _MAX_BYTES:
        raise CorruptFile(f"more than {_MAX_BYTES >> 20} MiB", where=where, accepted=accepted)
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptFile("no JSON", where=where, accepted=accepted) from None
    check_shape(fields, _ROUTING, where, wanted=accepted)
    return _checked(fields, where)


def _checked(fields: Mapping[str, Any], where: str) -> Routing:
    experts, top_k, tokens = (fields[name] for name in ("experts", "top_k", "tokens"))
    for name, value, most in (
        ("experts", experts, _MAX_EXPERTS),
        ("top_k", top_k, experts),
        ("tokens", tokens, _MAX_TOKENS),
    ):
        if not isinstance(value, int) or value > most:
            raise CorruptFile(f"{name} is {value}", where=where, accepted=f"a whole number from 1 to {most}")
    visits: dict[int, tuple[int, ...]] = {}
    for name, counts in fields["layers"].items():
        if not re.fullmatch(r"0|[1-9]\d{0,5}", name):
            raise CorruptFile(f"layers.{name[:60]}", where=where, accepted="a layer's number")
        if len(counts) != experts or not all(isinstance(n, int) and n <= tokens for n in counts):
            accepted = f"{experts} whole numbers of at most {tokens}"
            raise CorruptFile(f"layers.{name} is something else", where=where, accepted=accepted)
        if sum(counts) != tokens * top_k:
            accepted = f"{tokens * top_k}: {top_k} visits of each of {tokens} tokens"
            raise CorruptFile(f"layers.{name} has {sum(counts)} visits", where=where, accepted=accepted)
        visits[int(name)] = tuple(counts)
    if not visits:
        raise CorruptFile("no layers", where=where, accepted="at least one")
    about = {name: fields[name] for name in ("host_id", "created", "kbench_version") if name in fields}
    model, quant, text = (str(fields[name]) for name in ("model", "quant", "text"))
    return Routing(model, quant, text, experts, top_k, tokens, dict(sorted(visits.items())), about)
