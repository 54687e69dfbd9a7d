"""`kbench track aa`: this machine's own noise."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kbench.core import InvalidEnvironment

from .limits import positive_seconds
from .output import print_json, progress_bar, shown
from .revisions import tell
from .track_common import SUITE, FilterOption, JsonOption, MarginOption, SuiteOption, cells_of, floor_of, plan_of


def aa(
    suite: SuiteOption = SUITE,
    comparisons: Annotated[int, typer.Option(min=1, help="Of each case with itself.")] = 10,
    pattern: FilterOption = "",
    margin: MarginOption = None,
    max_seconds: Annotated[
        float | None, typer.Option(callback=positive_seconds, help="Of pairs of a comparison. Default: 20.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How much identical things seem to differ on this machine, and how often that is called a change.

    Compares every case with itself and stores what came out for this host; kbench track check never calls a change
    that is smaller.

    Example: kbench track aa --comparisons 20
    """
    from kbench.measure import host
    from kbench.results import Store
    from kbench.suites import compare_with_itself, installed

    cells, store = cells_of(suite, pattern), Store()
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("aa", total=len(cells) * comparisons)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "aa")

        outcomes = compare_with_itself(
            cells, installed(), store, plan_of(margin), n=comparisons, progress=progress, **options
        )
    floor = floor_of(store)
    now = [outcome.judgement for outcome in outcomes if outcome.judgement is not None]
    low, high = floor.rate_interval()
    fields: dict[str, Any] = {
        "suite": suite, "host_id": host().host_id, "n": len(now), "n_calls": sum(j.verdict.is_call for j in now),
        "stored": {"n": floor.n, "n_calls": floor.n_calls, "false_alarm_rate": floor.false_alarm_rate,
                   "interval": [low, high], "noise_floor": floor.overall},
        "cases": [
            {"case": case, "implementation": implementation, "noise_floor": value}
            for (case, implementation), value in sorted(floor.of_case.items())
        ],
        "failed": [{"case": o.key, "status": o.status, "reason": o.reason} for o in outcomes if o.judgement is None],
    }  # fmt: skip
    if as_json:
        print_json("track.aa", 1, fields)
    else:
        print(f"{len(now)} comparisons of identical things: {fields['n_calls']} called a change")
        print(f"all {floor.n} on host {host().host_id}: {floor.n_calls} false alarms, "
              f"{floor.false_alarm_rate:.1%} [{low:.1%}, {high:.1%}]")  # fmt: skip
        print(f"noise floor: {floor.overall:.2%} (95 % of them seem to differ by less)")
        for each in fields["cases"]:
            print(shown(f"  {each['noise_floor']:.2%}  {each['case']} {each['implementation']}"))
        for each in fields["failed"]:
            tell(f"{each['case']}: {each['status']}: {each['reason']}")
    if not now:
        first = fields["failed"][0]
        raise InvalidEnvironment(f"nothing could be compared: {first['reason']}", where=first["case"])
