"""What a model's file says of it, read key by key, each value checked where it is used."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, NoReturn


class CheckedValues(ABC):
    """Values by key. Everything that is read and is not as it should be ends in ``fail``, as does a missing key that
    has no default."""

    @abstractmethod
    def find(self, key: str) -> Any:
        """The value as it stands in the file; None where there is none."""

    @abstractmethod
    def fail(self, key: str, found: str, accepted: str = "") -> NoReturn:
        """Raises CorruptFile, saying where ``key`` stands."""

    def has(self, *keys: str) -> bool:
        """Whether there is any of ``keys``."""
        return any(self.find(key) is not None for key in keys)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 31) - 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            accepted = f"an integer of at least {least}" + (f", at most {most}" if most < (1 << 31) - 1 else "")
            self.fail(key, f"found {value!r:.80}", accepted)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            self.fail(key, f"found {value!r:.80}", "a positive number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"found {value!r:.80}", "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"found {value!r:.80}", "true or false")
        return value

    def top_k(self, key: str, experts: int) -> int:
        """How many of ``experts`` a token goes to."""
        value = self.integer(key)
        if value > experts:
            self.fail(key, f"found {value}", f"at most the {experts} experts")
        return value

    def groups(self, key: str, used_key: str, experts: int, top_k: int) -> tuple[int, int]:
        """How many equal groups ``experts`` form, 1 without the key, and how many of them a token may use, all without
        it. These hold the ``top_k`` that it goes to."""
        n_group = self.integer(key, 1)
        topk_group = self.integer(used_key, n_group)
        if experts % n_group or topk_group > n_group:
            self.fail(key, f"{n_group} groups of {experts} experts, {topk_group} of them used")
        if experts // n_group * topk_group < top_k:
            here = experts // n_group * topk_group
            self.fail(used_key, f"{topk_group} of {n_group} groups hold {here} experts, a token goes to {top_k}")
        return n_group, topk_group

    def _get(self, key: str, default: Any) -> Any:
        value = self.find(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "this key is missing")
        return value
