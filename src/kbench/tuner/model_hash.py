"""What tells models apart that are placed, and run, differently."""

from __future__ import annotations

import hashlib

from kbench.model import ModelDescriptor


def model_hash(descriptor: ModelDescriptor) -> str:
    """Of the architecture and every tensor's name, shape and type: two files that hash alike are placed alike."""
    lines = [descriptor.architecture, *(f"{t.name} {t.shape} {t.quant}" for t in descriptor.tensors)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
