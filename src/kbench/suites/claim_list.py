"""The ``claims`` of a suite file: numbers that people repeat, each with the check that measures it here.

::

    claims:
    - claim: Q8_0 decodes at about 60 % of Q4_0's tokens/s
      source: where that is said
      check: generation            # what is measured: CHECKS below; the keys after it are the check's own
      of: Q8_0
      over: Q4_0
      about: 0.6                   # or at_least: 3, at_most: 0.1, between: [1.03, 1.05]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbench.core import Lines, UserError, did_you_mean
from kbench.measure import Interval

from .rungs import HOLDS, LESS, MORE, OPEN, about_band

# What each check is told besides the claim. Texts and numbers, by name; a default makes a key optional.
CHECKS: Mapping[str, Mapping[str, Any]] = {
    # Speed of implementation `of` as a multiple of `over`'s, from pairs; `device: cuda` asks for a GPU.
    "implementations": {"problem": None, "of": None, "over": None, "device": "cpu"},
    # Tokens/s of the model in quantization `of` as a multiple of those in `over`, in one phase.
    "generation": {"of": None, "over": None, "phase": "decode", "tokens": 32},
    # Tokens/s of a prompt given at once, as a multiple of those of the same prompt given token by token.
    "prompt": {"tokens": 64},
    # FLOPs per element stored: `what: attention` or `what: experts`.
    "intensity": {"model": None, "what": None},
    # GB on a GPU that has all but routed experts and embedding (`what: gpu`, tensors named in `bf16` in two bytes, the
    # rest in 4 bits with a scale for 128), or in main memory (`what: host`, as the file has them).
    "memory": {"model": None, "what": None, "bf16": "", "context": 4096, "runtime_gb": 0.0},
    # Memory bandwidth of a GPU, from its profile, as a multiple of this host's, measured.
    "bandwidth": {"gpu": None},
    # Tokens/s of engine `of` as a multiple of `over`'s.
    "engines": {"of": None, "over": None, "phase": "decode"},
    # Perplexity of the model in quantization `of` as a multiple of that in `over`.
    "perplexity": {"of": None, "over": None, "tokens": 2048},
}
# Words that an option takes, by its check.
_CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("generation", "phase"): ("decode", "prefill"),
    ("engines", "phase"): ("decode", "prefill"),
    ("intensity", "what"): ("attention", "experts"),
    ("memory", "what"): ("gpu", "host"),
}
_BANDS = ("at_least", "at_most", "about", "between")
_CLAIM_KEYS = ("claim", "source", "check", *_BANDS)


@dataclass(frozen=True, slots=True)
class Band:
    """The values of which a claim would be true; ``text`` is how it was put: ``at least 3``."""

    low: float
    high: float
    text: str

    def verdict(self, measured: Interval) -> str:
        """Whether it holds, when the whole interval says so; else that it cannot be told."""
        if self.low <= measured.low and measured.high <= self.high:
            return HOLDS
        if measured.high < self.low:
            return LESS
        return MORE if measured.low > self.high else OPEN


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A claim, who says so, and how it is checked: ``options`` has every key of ``CHECKS[check]``."""

    claim: str
    source: str
    check: str
    band: Band
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.check}({','.join(f'{k}={v}' for k, v in self.options.items())}): {self.claim}"


def read_claims(items: Any, file: str, line: int | None) -> Iterator[ClaimCheck]:
    """The claims of a parsed list; ``file`` and ``line`` say where it stands.

    Raises:
        UserError: a mistake in it.
    """
    if not isinstance(items, list) or not items:
        raise UserError("no claims", where=f"{file}:{line}", accepted="claims: [{claim: ..., check: ...}, ...]")
    for item in items:
        if not isinstance(item, Lines):
            raise UserError(f"a claim is {item!r}", where=f"{file}:{line}", accepted="{claim: ..., check: ..., ...}")
        where = f"{file}:{item.line}"
        texts: dict[str, str] = {}
        for key in ("claim", "source", "check"):
            value = item.get(key)
            if not isinstance(value, str) or not value:
                raise UserError(f"{key} is {value!r}", where=where, accepted="text")
            texts[key] = value
        check = texts["check"]
        if check not in CHECKS:
            raise _unknown(check, CHECKS, "check", f"{file}:{item.line_of('check')}")
        known = CHECKS[check]
        for key in item:
            if key not in _CLAIM_KEYS and key not in known:
                raise _unknown(str(key), (*_CLAIM_KEYS, *known), "key", f"{file}:{item.line_of(key)}")
        options = {name: _option(item, name, default, file) for name, default in known.items()}
        yield ClaimCheck(texts["claim"], texts["source"], check, _band(item, where), options)


def _option(item: Lines, name: str, default: Any, file: str) -> Any:
    where = f"{file}:{item.line_of(name)}"
    if name not in item:
        if default is None:
            raise UserError(f"{item['check']} lacks {name}", where=where, accepted=f"{name}: ...")
        return default
    value = item[name]
    number = isinstance(default, (int, float))
    if number and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf):
        raise UserError(f"{name} is {value!r}", where=where, accepted="a number")
    if isinstance(default, int) and not (isinstance(value, int) and value > 0):
        raise UserError(f"{name} is {value!r}", where=where, accepted="a positive number")
    if not number and not isinstance(value, str):
        raise UserError(f"{name} is {value!r}", where=where, accepted="text")
    choices = _CHOICES.get((item["check"], name), ())
    if choices and value not in choices:
        raise UserError(f"{name} is {value!r}", where=where, accepted=" or ".join(choices))
    return value


def _band(item: Lines, where: str) -> Band:
    given = [key for key in _BANDS if key in item]
    if len(given) != 1:
        raise UserError("an incomplete claim", where=where, accepted=f"one of {', '.join(_BANDS)}")
    (kind,) = given
    ends = item[kind] if isinstance(item[kind], list) else [item[kind]]
    good = all(isinstance(end, (int, float)) and not isinstance(end, bool) and 0 < end < math.inf for end in ends)
    if not good or len(ends) != (2 if kind == "between" else 1) or ends != sorted(ends):
        accepted = "[least, most]" if kind == "between" else "a positive number"
        raise UserError(f"{kind} is {item[kind]!r}", where=where, accepted=accepted)
    value = float(ends[0])
    if kind == "between":
        return Band(value, float(ends[1]), f"{ends[0]:g} to {ends[1]:g}")
    low, high = {"at_least": (value, math.inf), "at_most": (0.0, value), "about": about_band(value)}[kind]
    return Band(low, high, f"{kind.replace('_', ' ')} {value:g}")


def _unknown(word: str, known: Iterable[str], what: str, where: str) -> UserError:
    known = list(known)
    return UserError(f"unknown {what} {word!r}", where=where, accepted=", ".join(known), todo=did_you_mean(word, known))
