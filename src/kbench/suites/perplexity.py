"""How well a model predicts a text, and how far a quantized one strays from the full-precision one on it.

The text's tokens are cut into windows that do not overlap; of each the second half is scored, every token by what comes
before it in the window, so that each has at least half a window of context. That is llama.cpp's way: figures for the
same text and window can be put side by side. Where the tokenizer puts a token in front of a text, it replaces each
window's first.

Everything is in nats and float64. Intervals are of a mean over tokens, at 95 %, as if tokens were independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kbench.core import CheckBroken, UserError
from kbench.measure import Interval, quantile
from kbench.results import Record

from .runner import Progress

WINDOW = 512
# Context before the first token that is scored, and one to score: less is no text.
LEAST_WINDOW = 8
# Rows of logits that are turned into float64 at a time.
_ROWS = 64
# A token that a model holds impossible costs some 30 nats; exp overflows at 709.
_MAX_NATS = 300.0
_Z = 1.959964  # of a normal distribution's two-sided 95 %

FloatArray = npt.NDArray[np.float64]


class LogitsSession(Protocol):
    """What of the engine's ``Session`` is used here."""

    @property
    def tokenizer(self) -> Any: ...

    def prefill(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]: ...

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]: ...

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of one model: ``nll`` holds each scored token's negative log likelihood in nats, window by window."""

    nll: FloatArray
    window: int
    n_windows: int

    @property
    def value(self) -> float:
        return math.exp(float(self.nll.mean()))

    @property
    def interval(self) -> Interval:
        low, high = _mean_interval(self.nll)
        return Interval(math.exp(low), math.exp(high), 0.95)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A model against a reference on the same tokens.

    Attributes:
        kl: of each scored token, KL(reference || model) of the next-token distributions, in nats.
        same_top: share of the tokens where both hold the same next token likeliest.
        nll_difference: model less reference, token by token.
    """

    kl: FloatArray
    same_top: float
    nll_difference: FloatArray

    @property
    def ratio(self) -> float:
        """The model's perplexity over the reference's."""
        return math.exp(float(self.nll_difference.mean()))

    @property
    def ratio_interval(self) -> Interval:
        """Narrower than the perplexities' own: what makes a token hard makes it hard for both."""
        low, high = _mean_interval(self.nll_difference)
        return Interval(math.exp(low), math.exp(high), 0.95)

    @property
    def kl_interval(self) -> Interval:
        return Interval(*_mean_interval(self.kl), 0.95)


def perplexity(
    session: LogitsSession,
    text: str,
    *,
    window: int = WINDOW,
    against: LogitsSession | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> tuple[Perplexity, Perplexity | None, Divergence | None]:
    """``session``'s on ``text``; with ``against``, the reference's too, and how far the two are apart.

    Args:
        window: tokens of one; both sessions must have as much context.
        max_tokens: stop after about so many tokens of the text, whole windows.

    Raises:
        UserError: a window that is too short, or a text that is shorter than one; models whose tokens differ.
        CheckBroken: logits that are no numbers.
    """
    ids = session.tokenizer.encode(text, special=False)
    if against is not None and against.tokenizer.encode(text, special=False) != ids:
        raise UserError("the two models cut the text into different tokens", where="--against", accepted="one model's")
    windows = list(_windows(ids, window, session.tokenizer, max_tokens))
    nll: list[FloatArray] = []
    other: list[FloatArray] = []
    kl: list[FloatArray] = []
    same = 0
    for done, tokens in enumerate(windows):
        if progress is not None:
            progress(done, len(windows), "perplexity")
        targets = np.asarray(tokens[window // 2 + 1 :])
        rows = _scored(session, tokens, window)
        reference = None if against is None else _scored(against, tokens, window)
        for begin in range(0, len(targets), _ROWS):
            part = slice(begin, begin + _ROWS)
            p = log_softmax(rows[part])
            here = np.arange(len(p))
            nll.append(-p[here, targets[part]])
            if reference is not None:
                q = log_softmax(reference[part])
                other.append(-q[here, targets[part]])
                kl.append((np.exp(q) * (q - p)).sum(axis=-1))
                same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
    if progress is not None:
        progress(len(windows), len(windows), "")
    own = Perplexity(_finite(nll, "of the model"), window, len(windows))
    if against is None:
        return own, None, None
    ref = Perplexity(_finite(other, "of the reference"), window, len(windows))
    apart = Divergence(_finite(kl, "between the two"), same / own.nll.size, own.nll - ref.nll)
    return own, ref, apart


def _finite(parts: Sequence[FloatArray], whose: str) -> FloatArray:
    """All of them. CheckBroken for what is no number, or too large for its exponential to be one."""
    values = np.concatenate(parts)
    worst = float(np.abs(values).max())
    if not worst <= _MAX_NATS:
        raise CheckBroken(
            f"logarithms of probabilities {whose} reach {worst:.3g}", where="--perplexity",
            accepted=f"at most {_MAX_NATS:g} nats: the file's weights are damaged, or a kernel is wrong",
        )  # fmt: skip
    return values


def log_softmax(logits: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """Of each row, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    result: FloatArray = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return result


def _windows(ids: Sequence[int], window: int, tokenizer: Any, max_tokens: int | None) -> Iterator[list[int]]:
    if window < LEAST_WINDOW:
        raise UserError(f"a window of {window} tokens", where="--window", accepted=f"{LEAST_WINDOW} or more")
    if len(ids) < window:
        todo = "a longer text, or a smaller --window"
        raise UserError(f"{len(ids)} tokens", where="--text", accepted=f"at least a window of {window}", todo=todo)
    count = len(ids) // window
    if max_tokens is not None:
        count = max(1, min(count, max_tokens // window))
    for number in range(count):
        tokens = list(ids[number * window : (number + 1) * window])
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            tokens[0] = tokenizer.bos_id
        yield tokens


def _scored(session: LogitsSession, tokens: Sequence[int], window: int) -> npt.NDArray[np.float32]:
    """The logits that the second half's tokens but its first are predicted with."""
    session.reset()
    session.prefill(tokens[: window // 2])
    return session.logits(tokens[window // 2 : window - 1])


def _mean_interval(values: FloatArray) -> tuple[float, float]:
    mean = float(values.mean())
    half = _Z * float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.inf
    return mean - half, mean + half


def perplexity_fields(own: Perplexity, ref: Perplexity | None, apart: Divergence | None) -> dict[str, Any]:
    """Plain numbers, for records and ``--json``."""
    said: dict[str, Any] = {
        "perplexity": own.value, "interval": [own.interval.low, own.interval.high], "nll": float(own.nll.mean()),
        "window": own.window, "n_windows": own.n_windows, "n_tokens": int(own.nll.size),
    }  # fmt: skip
    if ref is not None and apart is not None:
        kl = apart.kl.tolist()
        said["against"] = {
            "perplexity": ref.value, "interval": [ref.interval.low, ref.interval.high],
            "ratio": apart.ratio, "ratio_interval": [apart.ratio_interval.low, apart.ratio_interval.high],
            "kl_mean": float(apart.kl.mean()), "kl_interval": [apart.kl_interval.low, apart.kl_interval.high],
            "kl_median": quantile(kl, 0.5), "kl_p99": quantile(kl, 0.99), "kl_max": max(kl),
            "same_top": apart.same_top,
        }  # fmt: skip
    return said


def perplexity_record(
    model: str, text: str, against: str, threads: int, own: Perplexity, fields: dict[str, Any]
) -> Record:
    """Samples are the windows' mean negative log likelihoods, in nats."""
    params: dict[str, int | float | str] = {"model": model, "text": text, "window": own.window}
    if against:
        params["against"] = against
    samples = own.nll.reshape(own.n_windows, -1).mean(axis=-1).tolist()
    return Record.make(
        ("perplexity", params), "kbench", threads=threads, result=samples, unit="nats", extra={"perplexity": fields}
    )
