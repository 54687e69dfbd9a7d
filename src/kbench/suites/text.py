"""English that comes with kbench, for prompts that are text and for perplexity: written for it, known to no model."""

from __future__ import annotations

from functools import lru_cache

from .schema import suites_root


@lru_cache(maxsize=1)
def english() -> str:
    """About 20 kB: ``suites/texts/lighthouse.txt``."""
    return (suites_root() / "texts" / "lighthouse.txt").read_text(encoding="utf-8")
