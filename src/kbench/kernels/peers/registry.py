"""Peers by the names that command lines use."""

from __future__ import annotations

import functools

from kbench.core import UserError

from ..implementation import Implementation
from ..registry import implementation
from .kt_kernel import KtExperts

PEER_NAMES = ("kt",)


@functools.lru_cache(maxsize=8)
def peer_implementation(name: str) -> Implementation:
    """The peer called ``name``, installed or not. UserError when there is none of that name."""
    if name != "kt":
        raise UserError(f"unknown peer {name!r}", accepted=", ".join(PEER_NAMES))
    return KtExperts()


def comparable(name: str) -> Implementation:
    """An implementation of ours or of a peer. UserError when there is none of that name."""
    return peer_implementation(name) if name in PEER_NAMES else implementation(name)
