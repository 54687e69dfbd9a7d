"""`kbench track record`: measures a suite and stores it under host and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import CheckBroken, InvalidEnvironment

from .output import plural, print_json, shown
from .revisions import INSTALLED, built_revision, default_revision, tell
from .track_common import SUITE, FilterOption, JsonOption, SuiteOption, cells_of, named, recorded, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbench.results import Record


def record(
    suite: SuiteOption = SUITE,
    rev: Annotated[
        str | None, typer.Option(help=f"What to measure: a git revision (HEAD in a checkout), or {INSTALLED}.")
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, max=100, help="Fresh processes that measure each case.")] = 5,
    pattern: FilterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Measure a suite and store it under this host and the commit, for history and for checks at other times.

    Every block is a fresh process. A block that was taken while the machine was disturbed is taken again.

    Example: kbench track record --rev HEAD
    """
    from kbench.measure import host
    from kbench.results import Store
    from kbench.suites import Recorder

    cells = cells_of(suite, pattern)
    built = built_revision(rev or default_revision())
    store = Store()
    records = recorded(Recorder(built, n_blocks=blocks), cells, store, suite)
    warnings = _advice(records)
    fields: dict[str, Any] = {
        "suite": suite, "host_id": host().host_id, "revision": built.name, "commit": built.commit,
        "cases": _recorded_cases(records), "warnings": warnings,
    }  # fmt: skip
    if as_json:
        print_json("track.record", 1, fields)
    else:
        for case in fields["cases"]:
            told = f"{case['seconds'] * 1e6:.1f} µs, {case['n_blocks']} blocks" if case["seconds"] else case["reason"]
            print(shown(f"{case['case']} {case['implementation']}: {told}"))
        warn(warnings)
        tell(f"{plural(len(records), 'record')} of {named(built)} on host {host().host_id} in {store.root}")
    broken = [each for each in records if each.status in ("wrong", "crashed")]
    if broken:
        raise CheckBroken(f"{broken[0].status}: {broken[0].reason}", where=broken[0].key)
    disturbed = [each for each in records if each.status == "skipped"]
    if disturbed:
        raise InvalidEnvironment(disturbed[0].reason, where=disturbed[0].key, todo="run it again on a quiet machine")


def _recorded_cases(records: Sequence[Record]) -> list[dict[str, Any]]:
    from kbench.measure import median
    from kbench.results import track_fields

    groups: dict[tuple[str, str, str], list[Record]] = {}
    for each in records:
        groups.setdefault((each.key, each.implementation, str(each.extra.get("block"))), []).append(each)
    cases = []
    for (key, implementation, _), members in groups.items():
        blocks = [each.median for each in members if each.status == "ok" and each.median]
        failed = [each for each in members if each.status != "ok"]
        cases.append(
            {
                "case": key, "implementation": implementation, "status": failed[-1].status if failed else "ok",
                "reason": failed[-1].reason if failed else "", "seconds": median(blocks) if blocks else None,
                "blocks_seconds": blocks, "n_blocks": len(blocks),
                "discarded": [why for each in members for why in track_fields(each).get("discarded", ())],
            }
        )  # fmt: skip
    return cases


def _advice(records: Sequence[Record]) -> list[str]:
    from kbench.measure import advice, conditions
    from kbench.results import track_fields

    discarded = [why for each in records for why in track_fields(each).get("discarded", ())]
    found = [*advice(conditions())]
    if discarded:
        found.append(f"{plural(len(discarded), 'block')} thrown away and taken again, e.g. {discarded[0]}")
    return found
