"""From logits to a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbench.core import CheckBroken, UserError

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn, in the order in which the steps are taken.

    repetition_penalty: divides positive and multiplies negative logits of tokens among the last
        ``repetition_window`` (1: off).
    top_k: keeps the k likeliest (0: all). top_p: keeps the likeliest that together reach this probability (1: all).
    min_p: drops what is less likely than this share of the likeliest (0: none).
    temperature: divides the logits of what is left; 0 takes the likeliest at once.
    seed: for the random numbers; None draws one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0 <= self.temperature < math.inf, "a finite number from 0"),
            ("top_k", self.top_k, self.top_k >= 0, "a whole number from 0"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "a number above 0, up to 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "a number from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty < math.inf, "above 0"),
            ("repetition_window", self.repetition_window, self.repetition_window >= 0, "a whole number from 0"),
            ("seed", self.seed, self.seed is None or self.seed >= 0, "a whole number from 0"),
        )
        for name, value, ok, accepted in checks:
            if not ok:
                raise UserError(f"{value}", where=name, accepted=accepted)


GREEDY = SamplingParams(temperature=0.0)


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Probabilities of ``logits``, any shape, over the last axis; safe for every finite input."""
    wide = logits.astype(np.float64)
    shares: npt.NDArray[np.float64] = np.exp(wide - wide.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def _largest(logits: FloatArray, k: int) -> npt.NDArray[np.intp]:
    """Indices of the ``k`` largest, best first; equal ones in index order."""
    if 0 < k < logits.size:
        # Partial selection: sorting 150 000 logits to use 40 costs more than a small model's layer.
        threshold = np.partition(logits, logits.size - k)[logits.size - k]
        above = np.flatnonzero(logits > threshold)
        kept = np.concatenate([above, np.flatnonzero(logits == threshold)[: k - above.size]])
    else:
        kept = np.arange(logits.size)
    return kept[np.argsort(-logits[kept].astype(np.float64), kind="stable")]


class Sampler:
    """Draws tokens under ``params``; two samplers with one seed draw the same."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.seed = params.seed if params.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def probabilities(
        self, logits: FloatArray, recent: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The token ids that may be drawn, likeliest first, and their probabilities.

        Args:
            logits: float32 ``[vocab]``.
            recent: the tokens so far, the last ones last.

        Raises:
            CheckBroken: a logit is NaN or infinite: a kernel or the file is broken, and no token can be right.
        """
        if not np.isfinite(logits).all():
            bad = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise CheckBroken(
                f"logit {bad} is {logits[bad]}", where="sampling",
                todo="the weights or a kernel are broken: try --implementation reference",
            )  # fmt: skip
        params = self.params
        if params.repetition_penalty != 1 and recent and params.repetition_window:
            seen = np.unique(np.asarray(recent[-params.repetition_window :], dtype=np.int64))
            logits = logits.copy()
            values = logits[seen]
            # In double precision, then clipped: a penalty must not make an infinity out of a finite logit.
            wide = values.astype(np.float64)
            wide = np.where(wide > 0, wide / params.repetition_penalty, wide * params.repetition_penalty)
            logits[seen] = np.clip(wide, np.finfo(np.float32).min, np.finfo(np.float32).max)
        if params.temperature == 0:
            return np.array([int(np.argmax(logits))]), np.ones(1)
        ids = _largest(logits, params.top_k)
        kept = logits[ids].astype(np.float64)
        if params.top_p < 1:
            cumulative = np.cumsum(softmax(kept))
            # The first position at which the sum reaches top_p is kept too.
            n_kept = int(np.searchsorted(cumulative, params.top_p)) + 1
            ids, kept = ids[:n_kept], kept[:n_kept]
        if params.min_p > 0:
            # p >= min_p * p_max, in logits: no softmax, no underflow.
            alive = kept >= kept[0] + math.log(params.min_p)
            ids, kept = ids[alive], kept[alive]
        # Shifted first: dividing by a tiny temperature may overflow, but only towards -inf, whose share is 0.
        with np.errstate(over="ignore"):
            scaled = (kept - kept[0]) / params.temperature
        weights = np.exp(scaled)
        return ids, weights / weights.sum()

    def uniform(self) -> float:
        """The next random number, from [0, 1): one a token, however many may be drawn, so that a seed means the same
        to whoever draws."""
        return float(self._random.random())

    def drawn_by(self) -> tuple[float, float, float, float]:
        """What the next token is drawn by: top_p, min_p, temperature (not 0: greedy has one candidate), and a random
        number."""
        params = self.params
        if params.temperature == 0:
            return 1.0, 0.0, 1.0, 0.0
        return params.top_p, params.min_p, params.temperature, self.uniform()

    def sample(self, logits: FloatArray, recent: Sequence[int] = ()) -> int:
        """One token id. Arguments and errors as for ``probabilities``."""
        ids, shares = self.probabilities(logits, recent)
        if self.params.temperature == 0:
            return int(ids[0])
        # Inverse of the cumulative sum; min() guards against a sum that rounds to just under the draw.
        drawn = int(np.searchsorted(np.cumsum(shares), self.uniform(), side="right"))
        return int(ids[min(drawn, ids.size - 1)])
