"""The class under which byte tables count a tensor, from its GGUF name."""

from __future__ import annotations

import re

KINDS = (
    "routed experts", "attention", "shared experts", "dense FFN", "router", "norms", "embedding", "lm_head", "other",
)  # fmt: skip

# First match wins.
_PATTERNS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"^token_embd\.", "embedding"),
        (r"^output\.", "lm_head"),
        (r"_norm\.", "norms"),
        (r"\.ffn_gate_inp\.|\.exp_probs_b\.", "router"),
        (r"\.ffn_\w+_exps\.", "routed experts"),
        (r"\.ffn_\w+_shexp\.", "shared experts"),
        (r"\.ffn_", "dense FFN"),
        (r"\.attn_|\.ssm_|^rope_freqs\.", "attention"),
    )
)


def tensor_kind(name: str) -> str:
    """One of ``KINDS``."""
    return next((kind for pattern, kind in _PATTERNS if pattern.search(name)), "other")
