"""How often verdicts are wrong, and how often they find what is there: simulated series, no measuring.

    python scripts/verdict_rates.py --series 2000

Every line is a kind of noise; times are made for A B B A ... as a machine would give them, and judged as
``kbench compare`` does. Beside it, what three customary rules say of 40 samples a side taken one side after the other,
and in turns. Printed as the table of ``docs/statistics.md``. Some minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy import stats

from kbench.measure import Plan, Verdict, decide

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]

SAMPLES = 1000  # longest: 160 pairs, and at each of five looks as many again to confirm
ONE_AFTER_THE_OTHER = 40


def autocorrelated(rng: np.random.Generator, n: int, rho: float, deviation: float) -> Floats:
    steps = rng.normal(0, deviation * math.sqrt(1 - rho * rho), n)
    values = np.empty(n)
    values[0] = rng.normal(0, deviation)
    for i in range(1, n):
        values[i] = rho * values[i - 1] + steps[i]
    return values


def outlier(rng: np.random.Generator, n: int) -> Floats:
    noise = rng.normal(0, 0.05, n)
    noise[rng.integers(20)] += math.log(10)
    return noise


def bimodal(rng: np.random.Generator, n: int) -> Floats:
    """Two clock speeds 10 % apart, held for some twenty samples each."""
    state = np.cumsum(rng.random(n) < 0.05) % 2
    return 0.10 * state + rng.normal(0, 0.02, n)


def bump(rng: np.random.Generator, n: int) -> Floats:
    """10 % slower for forty samples, as while somebody compiles."""
    places = np.arange(n)
    return 0.10 * ((places >= 20) & (places < 60)) + rng.normal(0, 0.02, n)


# Deviations of the logarithm of one sample.
NOISES: dict[str, Noise] = {
    "iid normal, 5 %": lambda rng, n: rng.normal(0, 0.05, n),
    "iid normal, 20 %": lambda rng, n: rng.normal(0, 0.20, n),
    "AR(1) 0.6, 5 %": lambda rng, n: autocorrelated(rng, n, 0.6, 0.05),
    "AR(1) 0.6, 20 %": lambda rng, n: autocorrelated(rng, n, 0.6, 0.20),
    "heavy tails: Student t, 2 degrees, 3 %": lambda rng, n: 0.03 * rng.standard_t(2, n),
    "long delays: 15 % of samples take +Exp(30 %)": lambda rng, n: (
        rng.normal(0, 0.02, n) + (rng.random(n) < 0.15) * rng.exponential(0.30, n)
    ),
    "drift: 1 % slower a sample": lambda rng, n: 0.01 * np.arange(n) + rng.normal(0, 0.05, n),
    "random walk, 2 % a sample": lambda rng, n: np.cumsum(rng.normal(0, 0.02, n)),
    "one sample of ten times": outlier,
    "bimodal: 10 %, changing": bimodal,
    "step up by 10 %, recovered after 40 samples": bump,
}


class Machine:
    """Pairs of one simulated run."""

    def __init__(self, noise: Floats, effect: float) -> None:
        self._noise, self._effect, self._at, self._pair = noise, effect, 0, 0

    def take(self, n: int) -> list[float]:
        found = []
        for _ in range(n):
            first, second = self._noise[self._at : self._at + 2]
            difference = second - first if self._pair % 2 == 0 else first - second
            found.append(float(difference) + self._effect)
            self._at, self._pair = self._at + 2, self._pair + 1
        return found


def verdicts(noise: Noise, effect: float, plan: Plan, n_series: int, seed: int) -> tuple[list[Verdict], float]:
    """With the mean number of pairs, those of confirmations too."""
    rng = np.random.default_rng(seed)
    found, pairs = [], 0
    for _ in range(n_series):
        judgement = decide(Machine(noise(rng, SAMPLES), math.log1p(effect)).take, plan)
        found.append(judgement.verdict)
        pairs += judgement.n_pairs + len(judgement.confirmed_by)
    return found, pairs / n_series


def customary(noise: Noise, n_series: int, seed: int, in_turns: bool) -> Iterator[float]:
    """False calls of Welch's test, Mann-Whitney's and a threshold of 5 % on means."""
    rng = np.random.default_rng(seed)
    calls = np.zeros(3)
    n = ONE_AFTER_THE_OTHER
    turns = np.tile([0, 1, 1, 0], n // 2).astype(bool)
    for _ in range(n_series):
        series = np.exp(noise(rng, 2 * n))
        a, b = (series[~turns], series[turns]) if in_turns else (series[:n], series[n:])
        calls += (
            stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05,
            stats.mannwhitneyu(a, b).pvalue < 0.05,
            abs(b.mean() / a.mean() - 1) > 0.05,
        )
    yield from calls / n_series


def print_head(*names: str) -> None:
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=2000, help="simulated runs for each number")
    parser.add_argument("--margin", type=float, default=0.03)
    parser.add_argument("--noise", default="", help="only kinds of noise whose name holds this")
    options = parser.parse_args()
    chosen = [(seed, *item) for seed, item in enumerate(NOISES.items()) if options.noise in item[0]]
    plan = Plan(margin=options.margin)

    def calls(noise: Noise, effect: float, wanted: Verdict | None, seed: int) -> tuple[float, float]:
        found, pairs = verdicts(noise, effect, plan, options.series, seed)
        right = [v.is_call if wanted is None else v is wanted for v in found]
        return 100 * float(np.mean(right)), pairs

    print_head("noise of one sample", "calls where nothing changed", "pairs", "calls of half the margin", "+5 % found",
               "+10 %", "−5 %", "−10 %", "pairs at −10 %")  # fmt: skip
    for seed, name, noise in chosen:
        false, pairs = calls(noise, 0.0, None, seed)
        edge, _ = calls(noise, options.margin / 2, None, seed + 50)
        found = [calls(noise, effect, Verdict.REGRESSED, seed + 100) for effect in (0.05, 0.10)]
        found += [calls(noise, 1 / (1 + effect) - 1, Verdict.IMPROVED, seed + 200) for effect in (0.05, 0.10)]
        cells = [f"{false:.1f} %", f"{pairs:.0f}", f"{edge:.1f} %", *(f"{f:.0f} %" for f, _ in found)]
        print(f"| {name} | {' | '.join(cells)} | {found[-1][1]:.0f} |", flush=True)
    print()
    print_head("calls where nothing changed, by", "Welch", "Mann-Whitney", "5 % on means", "in turns: Welch",
               "Mann-Whitney", "5 % on means")  # fmt: skip
    for seed, name, noise in chosen:
        rates = [*customary(noise, options.series, seed, False), *customary(noise, options.series, seed, True)]
        print(f"| {name} | {' | '.join(f'{100 * rate:.0f} %' for rate in rates)} |", flush=True)


if __name__ == "__main__":
    main()
