"""How often steps in histories are found that are not there, and how soon those that are: simulated, no measuring.

    python scripts/step_rates.py --series 200

A history is 100 commits with one value each. Beside ``kbench track history`` stand three customary rules, asked at
every commit: Welch's test and Mann-Whitney's of the last ten commits against the ten before (p < 0.05), and the newest
commit against the one before it (5 %). Printed as the tables of ``docs/statistics.md``. Some minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats
from verdict_rates import Floats, autocorrelated

from kbench.measure import Trend, Verdict, judge_history

Noise = Callable[[np.random.Generator, int], Floats]

N = 100
# The step's commit, and where it is made good again in the last table.
AT, BACK = 50, 75
# After so many commits since a step it is looked for.
SINCE = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
# A step is where it is said to be when it is this near.
NEAR = 2


def one_outlier(rng: np.random.Generator, n: int) -> Floats:
    noise = rng.normal(0, 0.02, n)
    noise[rng.integers(n)] += math.log(10)
    return noise


def bimodal(rng: np.random.Generator, n: int) -> Floats:
    """Runs on one of two kinds of machine that are 10 % apart, which kind by chance each time."""
    return 0.10 * (rng.random(n) < 0.5) + rng.normal(0, 0.02, n)


def bimodal_held(rng: np.random.Generator, n: int) -> Floats:
    """The same, but each kind is held for some twenty commits."""
    return 0.10 * (np.cumsum(rng.random(n) < 0.05) % 2) + rng.normal(0, 0.02, n)


NOISES: dict[str, Noise] = {
    "iid normal, 2 %": lambda rng, n: rng.normal(0, 0.02, n),
    "iid normal, 5 %": lambda rng, n: rng.normal(0, 0.05, n),
    "AR(1) 0.6, 2 %": lambda rng, n: autocorrelated(rng, n, 0.6, 0.02),
    "AR(1) 0.6, 5 %": lambda rng, n: autocorrelated(rng, n, 0.6, 0.05),
    "heavy tails: Student t, 2 degrees, 2 %": lambda rng, n: 0.02 * rng.standard_t(2, n),
    "one commit of ten times": one_outlier,
    "bimodal: 10 %, any commit": bimodal,
    "bimodal: 10 %, held for 20 commits": bimodal_held,
    "drift: 0.1 % slower a commit": lambda rng, n: 0.001 * np.arange(n) + rng.normal(0, 0.02, n),
}


def judged(logs: Floats) -> Trend:
    return judge_history(np.exp(logs).tolist())


def customary(logs: Floats) -> Iterator[bool]:
    """Whether Welch's test, Mann-Whitney's and the threshold raise an alarm at any commit of the history."""
    windows = np.lib.stride_tricks.sliding_window_view(np.exp(logs), 20)
    before, after = windows[:, :10], windows[:, 10:]
    yield bool(np.any(stats.ttest_ind(before, after, axis=1, equal_var=False).pvalue < 0.05))
    yield bool(np.any(stats.mannwhitneyu(before, after, axis=1).pvalue < 0.05))
    yield bool(np.any(np.abs(np.expm1(np.diff(logs))) > 0.05))


def unchanged(noise: Noise, n_series: int, seed: int) -> Iterator[float]:
    """Shares of histories: any step, an open regression at the end, one at any tenth commit; then the customary."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(6)
    for _ in range(n_series):
        logs = noise(rng, N)
        last = judged(logs)
        ever = any(judged(logs[:n]).verdict is Verdict.REGRESSED for n in range(20, N, 10))
        regressed = last.verdict is Verdict.REGRESSED
        counts += (bool(last.steps), regressed, regressed or ever, *customary(logs))
    yield from counts / n_series


def changed(noise: Noise, effect: float, n_series: int, seed: int) -> Iterator[float]:
    """Of histories with one step: found as a regression at the end, at the right commit, commits until it was first
    seen (median of those found), steps too many."""
    rng = np.random.default_rng(seed)
    found, placed, extra = 0, 0, 0
    delays = []
    for _ in range(n_series):
        logs = noise(rng, N) + math.log1p(effect) * (np.arange(N) >= AT)
        last = judged(logs)
        near = [step for step in last.steps if abs(step.at - AT) <= NEAR]
        found += last.verdict is Verdict.REGRESSED
        placed += bool(near)
        extra += len(last.steps) > 1
        delays.append(next((n for n in SINCE if judged(logs[: AT + n]).verdict is Verdict.REGRESSED), math.inf))
    yield from (found / n_series, placed / n_series, float(np.median(delays)), extra / n_series)


def recovered(noise: Noise, effect: float, n_series: int, seed: int) -> Iterator[float]:
    """Of histories with a step that is made good: it was an open regression before, and is none at the end."""
    rng = np.random.default_rng(seed)
    seen, closed = 0, 0
    for _ in range(n_series):
        places = np.arange(N)
        logs = noise(rng, N) + math.log1p(effect) * ((places >= AT) & (places < BACK))
        seen += judged(logs[:BACK]).verdict is Verdict.REGRESSED
        closed += judged(logs).verdict is not Verdict.REGRESSED
    yield from (seen / n_series, closed / n_series)


def table(*names: str) -> None:
    print("\n| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names), flush=True)


def line(name: str, cells: Iterator[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="simulated histories for each number")
    n = parser.parse_args().series
    table("nothing changed in 100 commits", "any step at the end", "REGRESSED at the end", "ever, asked each tenth",
          "Welch, ever", "Mann-Whitney, ever", "5 % threshold, ever")  # fmt: skip
    for seed, (name, noise) in enumerate(NOISES.items()):
        line(name, (f"{100 * rate:.0f} %" for rate in unchanged(noise, n, seed)))
    table("a step at commit 50 of 100", "+5 % found", "at its commit ±2", "seen after", "other steps", "+10 % found",
          "at its commit ±2", "seen after", "other steps")  # fmt: skip
    for seed, (name, noise) in enumerate(NOISES.items()):
        cells = []
        for effect in (0.05, 0.10):
            found, placed, delay, extra = changed(noise, effect, n, seed + 100)
            seen = f"{delay:.0f}" if delay < math.inf else "–"
            cells += [f"{100 * found:.0f} %", f"{100 * placed:.0f} %", seen, f"{100 * extra:.0f} %"]
        line(name, iter(cells))
    table("+10 % from commit 50 to 74", "REGRESSED at commit 74", "not any more at commit 99")
    for seed, (name, noise) in enumerate(NOISES.items()):
        line(name, (f"{100 * rate:.0f} %" for rate in recovered(noise, 0.10, n, seed + 200)))


if __name__ == "__main__":
    main()
