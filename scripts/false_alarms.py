"""How often verdicts are wrong on this machine: identical things compared, and slowdowns that are really there.

    python scripts/false_alarms.py --store results            # stops after 12 minutes; run again to go on

Every comparison is one of ``kbench compare``: two fresh processes, pairs, confirmation by processes that were started
anew, with the default plan. In some, one side waits busily for 5 or 10 % of the time that its operation took. What is
compared comes in a shuffled, seeded order, so that no kind has a quiet hour for itself. Records go to the store's suite
``false-alarms``; run again, it goes on where it was stopped (``--again`` starts anew), and prints the table of
``docs/statistics.md`` from all records of this host and commit.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from kbench.core import Problem, default_threads
from kbench.kernels import best
from kbench.measure import Guard, Plan, Side, host
from kbench.results import Record, Store, current_commit
from kbench.suites import Contest, Outcome, compare_ops

SUITE = "false-alarms"
_SLOWED = Path(__file__).with_name("slowed_side.py")

# Small: what takes the time is to be the pairs. One-token products, one of many tokens, routed experts, attention.
PROBLEMS = (
    "linear(quant=Q4_K,n=512,k=1536,tokens=1)",
    "linear(quant=Q8_0,n=512,k=1536,tokens=1)",
    "linear(quant=Q4_K,n=256,k=1024,tokens=16)",
    "moe_experts(experts=16,top_k=2,n=256,k=512,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q6_K,tokens=1)",
)
# How much slower A and B are; what is to be said of it.
KINDS: dict[str, tuple[float, float, tuple[str, ...]]] = {
    "nothing changed": (0.0, 0.0, ("SAME", "INCONCLUSIVE")),
    "B 5 % slower": (0.0, 0.05, ("REGRESSED",)),
    "A 5 % slower": (0.05, 0.0, ("IMPROVED",)),
    "B 10 % slower": (0.0, 0.10, ("REGRESSED",)),
    "A 10 % slower": (0.10, 0.0, ("IMPROVED",)),
}


def side(which: int, name: str, share: float) -> Side:
    """A process that is ``share`` slower; undisturbed ones run the same program with a wait of 0."""
    return Side(f"{'AB'[which]} ({name})", [str(_SLOWED), str(share)])


def compared(kind: str, problem: Problem, threads: int, plan: Plan, guard: Guard) -> Outcome:
    shares, name = KINDS[kind][:2], best(problem)
    contest = Contest(problem, name, name, threads, names=("A", "B"))
    (found,) = compare_ops(
        [contest], None, plan, make_side=lambda which, name: side(which, name, shares[which]), guard=guard
    )  # fmt: skip
    return found


def record_of(outcome: Outcome, kind: str, number: int, seconds: float) -> Record:
    about = {"kind": kind, "number": number, "seconds": round(seconds, 2)}
    record = outcome.record()
    return replace(record, extra={**record.extra, "false_alarms": about})


def done(store: Store) -> Iterator[tuple[str, int, Record]]:
    """What is stored of this host and commit: kind, number, record."""
    for record in store.find(host_id=host().host_id, commit=current_commit()):
        about = record.extra.get("false_alarms")
        if isinstance(about, dict) and about.get("kind") in KINDS:
            yield about["kind"], about["number"], record


def print_table(records: Sequence[tuple[str, int, Record]]) -> None:
    words = ("REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE")
    print(f"| what | comparisons | {' | '.join(words)} | disturbed | right | 95 % interval | pairs |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind, (_, _, wanted) in KINDS.items():
        mine = [record for one, _, record in records if one == kind]
        said: list[dict[str, Any]] = [record.extra["compare"] for record in mine if record.status == "ok"]
        verdicts = [each["verdict"] for each in said]
        if not verdicts:
            continue
        right = sum(verdict in wanted for verdict in verdicts)
        sure = binomtest(right, len(verdicts)).proportion_ci(0.95, method="exact")
        pairs = sum(len(each["a_seconds"]) + each["n_confirmed_by"] for each in said) / len(said)
        counts = " | ".join(str(verdicts.count(word)) for word in words)
        share = f"{right / len(verdicts):.1%} | {sure.low:.1%} to {sure.high:.1%}".replace("%", " %")
        print(f"| {kind} | {len(verdicts)} | {counts} | {len(mine) - len(verdicts)} | {share} | {pairs:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="folder of results; default: where kbench keeps them")
    parser.add_argument("--same", type=int, default=200, help="comparisons of identical things")
    parser.add_argument("--changed", type=int, default=50, help="of each of the four slowdowns")
    parser.add_argument("--minutes", type=float, default=12.0, help="stop after so many; run again to go on")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--again", action="store_true", help="count on from 0, beside what is stored")
    parser.add_argument("--table", action="store_true", help="print the table of what is stored, measure nothing")
    options = parser.parse_args()
    store, guard, plan = Store(options.store), Guard(), Plan()
    known = list(done(store))
    begin_at = max((number for _, number, _ in known), default=-1) + 1 if options.again else 0
    finished = {(kind, number) for kind, number, _ in known}
    numbers = {**dict.fromkeys(KINDS, options.changed), "nothing changed": options.same}
    todo = [(kind, begin_at + i) for kind, n in numbers.items() for i in range(n)]
    random.Random(0).shuffle(todo)
    todo = [] if options.table else [each for each in todo if each not in finished]
    started = time.monotonic()
    for position, (kind, number) in enumerate(todo):
        problem = Problem.parse(PROBLEMS[number % len(PROBLEMS)])
        begin = time.monotonic()
        if begin - started > 60 * options.minutes:
            print(f"{len(todo) - position} are left: run it again", flush=True)
            break
        outcome = compared(kind, problem, options.threads, plan, guard)
        seconds = time.monotonic() - begin
        record = record_of(outcome, kind, number, seconds)
        store.append(record, suite=SUITE)
        known.append((kind, number, record))
        left = (time.monotonic() - started) / (position + 1) * (len(todo) - position - 1)
        verdict = outcome.judgement.verdict.value if outcome.judgement else f"{outcome.status}: {outcome.reason}"
        print(f"{position + 1}/{len(todo)} {kind}: {verdict} ({seconds:.1f} s, {left / 60:.1f} min left)", flush=True)
    print_table(known)


if __name__ == "__main__":
    main()
