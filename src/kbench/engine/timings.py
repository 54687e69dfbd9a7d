"""What a session's tokens took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """Tokens and the seconds that they took, since the session was made or ``clear`` was called."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def clear(self) -> None:
        self.prefill_tokens, self.decode_tokens = 0, 0
        self.prefill_seconds, self.decode_seconds = 0.0, 0.0
