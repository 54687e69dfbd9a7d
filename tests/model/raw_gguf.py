"""Writes GGUF bytes field by field, so that each can be wrong. Knows nothing of the reader."""

from __future__ import annotations

import struct


class RawGguf:
    """Fields are added in the order of the calls; counts and padding come with ``bytes``."""

    def __init__(self, *, magic: bytes = b"GGUF", version: int = 3) -> None:
        self.head = magic + struct.pack("<I", version)
        self.kv = b""
        self.table = b""
        self.n_kv = 0
        self.n_tensors = 0

    @staticmethod
    def text(value: bytes | str) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw

    def add(self, key: bytes | str, kind: int, value: bytes) -> RawGguf:
        self.kv += self.text(key) + struct.pack("<I", kind) + value
        self.n_kv += 1
        return self

    def architecture(self) -> RawGguf:
        return self.add("general.architecture", 8, self.text("llama"))

    def tensor(
        self,
        name: bytes | str = "a.weight",
        shape: tuple[int, ...] = (32,),
        kind: int = 0,
        offset: int = 0,
        n_dims: int | None = None,
    ) -> RawGguf:
        dims = struct.pack(f"<{len(shape)}Q", *shape)
        n = len(shape) if n_dims is None else n_dims
        self.table += self.text(name) + struct.pack("<I", n) + dims + struct.pack("<IQ", kind, offset)
        self.n_tensors += 1
        return self

    def bytes(self, data: int = 0, n_tensors: int | None = None, n_kv: int | None = None) -> bytes:
        counts = (self.n_tensors if n_tensors is None else n_tensors, self.n_kv if n_kv is None else n_kv)
        head = self.head + struct.pack("<qq", *counts) + self.kv + self.table
        return head + b"\0" * (-len(head) % 32) + b"\0" * data
