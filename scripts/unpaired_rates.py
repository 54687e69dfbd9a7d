"""How often verdicts from recorded blocks are wrong, and what they find: simulated runs, no measuring.

    python scripts/unpaired_rates.py --runs 2000              # seconds

Two runs of five blocks each; every run has a state of the machine of its own (a factor that all its blocks share),
every block its own luck. Judged with the deviation between runs that is assumed where nothing is known (2.5 %), and
with the true one, as where a host knows its own. Printed as the table of ``docs/statistics.md``.
"""

from __future__ import annotations

import argparse
import math
import random

from kbench.measure import ASSUMED_BETWEEN, Plan, Verdict, judge_unpaired

BLOCKS = 5
# Deviations of the logarithm: from run to run, from block to block.
MACHINES = ((0.005, 0.01), (0.01, 0.02), (0.025, 0.01), (0.025, 0.03), (0.05, 0.02))
EFFECTS = (0.0, 0.10, 0.20)


def run(rng: random.Random, between: float, within: float, effect: float) -> list[float]:
    state = rng.gauss(0, between) + math.log1p(effect)
    return [math.exp(state + rng.gauss(0, within)) for _ in range(BLOCKS)]


def rates(between: float, within: float, known: float, n: int) -> list[float]:
    """Percentages of: any call where nothing changed; REGRESSED at each effect; SAME where nothing changed."""
    rng, found = random.Random(f"{between} {within}"), []
    for effect in EFFECTS:
        said = [
            judge_unpaired(run(rng, between, within, 0.0), run(rng, between, within, effect), Plan(), known).verdict
            for _ in range(n)
        ]
        right = [verdict.is_call if not effect else verdict is Verdict.REGRESSED for verdict in said]
        found.append(100 * sum(right) / n)
        if not effect:
            same = 100 * sum(verdict is Verdict.SAME for verdict in said) / n
    return [*found, same]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated pairs of runs for each number")
    options = parser.parse_args()
    print("| between runs | between blocks | false calls | +10 % found | +20 % found | SAME | "
          "known: false calls | +10 % found | +20 % found | SAME |")  # fmt: skip
    print("|" + "---|" * 10)
    for between, within in MACHINES:
        cells = [
            f"{value:.1f} %" if i in (0, 4) else f"{value:.0f} %"
            for i, value in enumerate(
                [
                    *rates(between, within, ASSUMED_BETWEEN, options.runs),
                    *rates(between, within, between, options.runs),
                ]
            )
        ]
        print(f"| {between:.1%} | {within:.0%} | {' | '.join(cells)} |".replace("% |", " % |").replace("  %", " %"))


if __name__ == "__main__":
    main()
