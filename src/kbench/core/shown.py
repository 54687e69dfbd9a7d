"""Text from files as a screen may have it."""

from __future__ import annotations

import re

# Control characters but for line break and tab, what overrides the direction of text, and halves of characters.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """``text`` as a terminal or a page may have it: what it would obey instead of showing (control and direction
    characters, which names in files and a model's words can hold) as escapes; line breaks and tabs stay."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
