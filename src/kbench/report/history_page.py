"""The histories of cases as a page: what became slower first, and every case to look into."""

from __future__ import annotations

from collections.abc import Sequence

from .block import Block, Section
from .chart import Fields
from .history_chart import history_chart, short, state_words
from .page import render_page
from .quantity import change, quantity

# A chart is some 30 KB: a page of more is none that a browser opens at once. Those left out are in the table.
_MOST_CHARTS = 150
# Shown at once; what follows is opened one by one.
_MOST_OPEN = 6

_GROUPS = (
    ("REGRESSED", "slower", "Slower"),
    ("IMPROVED", "faster", "Faster"),
    ("INCONCLUSIVE", "unknown", "Not known yet"),
    ("SAME", "same", "The same"),
)
_LABELS = {"REGRESSED": "slower", "IMPROVED": "faster", "INCONCLUSIVE": "not known", "SAME": "the same"}


def history_page(fields: Fields) -> str:
    """The page for the object ``kbench.track-history/1`` (``judged_histories``)."""
    hosts = list(dict.fromkeys(case["host_id"] for case in fields["cases"]))
    n = len(hosts)
    subtitle = " · ".join(
        filter(
            None,
            [
                fields.get("branch", ""),
                f"host {hosts[0]}" if n == 1 else f"{n} hosts",
                fields.get("created", "")[:10],
                f"steps from {fields['min_magnitude'] * 100:.3g} % on",
            ],
        )
    )
    footer = f"Made by kbench {fields.get('kbench_version', '')} from the records of kbench track record."
    return render_page("History", fields.get("suite", ""), "history", subtitle, history_sections(fields), footer)


def history_sections(fields: Fields) -> list[Section]:
    """Those that ``fields`` has something for."""
    cases, found, charts = fields["cases"], [Section("summary", "Summary", _summary(fields))], 0
    for verdict, name, title in _GROUPS:
        members = [case for case in cases if case["verdict"] == verdict]
        blocks: list[Block] = []
        for case in members:
            number = charts
            drawn = charts < _MOST_CHARTS
            charts += 1
            blocks.append(_case(case, f"history-{number}", drawn, verdict == "REGRESSED" and number < _MOST_OPEN))
        found.append(Section(name, f"{title}: {len(members)}", blocks))
    found.append(Section("reading", "How to read it", _reading(fields)))
    return [section for section in found if section.blocks]


def _summary(fields: Fields) -> list[Block]:
    cases = fields["cases"]
    counts = fields["counts"]
    slower = [case for case in cases if case["verdict"] == "REGRESSED"]
    figures = [
        ("Cases", f"{len(cases)}", f"{sum(len(case['points']) for case in cases)} measured commits in all"),
        ("Slower", f"{len(slower)}", change(max(case["left"] for case in slower)) + " at most" if slower else "no step "
         "for the worse is left"),
        ("Faster", f"{counts.get('IMPROVED', 0)}", "than at the beginning"),
        ("Not known yet", f"{counts.get('INCONCLUSIVE', 0)}", "too few commits"),
    ]  # fmt: skip
    blocks = [Block("figures", rows=figures)]
    if slower:
        header = ["case", "now", "", "since commit", "measured"]
        blocks.append(
            Block("table", "What became slower and still is", header=header, rows=_open_rows(slower), words=(0,))
        )
    return blocks + [Block("note", note) for note in fields["notes"]]


def _open_rows(cases: Sequence[Fields]) -> list[list[str]]:
    rows = []
    for case in cases:
        for step in case["steps"]:
            if step["state"] == "open":
                rows.append(
                    [
                        _name(case),
                        quantity(case["now"], case["unit"]),
                        change(step["left"]),
                        short(step["commit"]),
                        step["created"][:10],
                    ]
                )
    return rows


def _case(case: Fields, name: str, drawn: bool, open_: bool) -> Block:
    verdict = _LABELS[case["verdict"]]
    words = f"{_name(case)}: {quantity(case['now'], case['unit'])}"
    if case["verdict"] == "REGRESSED":
        words += f", {change(case['left'])}"
    elif case["steps"]:
        words += f", {len(case['steps'])} step{'s' if len(case['steps']) > 1 else ''}"
    if case["reason"]:
        words += f" ({case['reason']})"
    blocks: list[Block] = []
    if drawn:
        blocks.append(Block("chart", chart=history_chart(case, name)))
    if case["steps"]:
        header = ["between commits", "measured", "from", "to", "", "of it left", "what it is"]
        rows = [
            [
                f"{short(step['after_commit'])}..{short(step['commit'])}",
                step["created"][:10],
                quantity(step["before"], case["unit"]),
                quantity(step["after"], case["unit"]),
                change(step["cost"]),
                change(step["left"]) if step["state"] == "open" else "",
                ": ".join(filter(None, [state_words(step["state"]), step["why"]])),
            ]
            for step in case["steps"]
        ]
        blocks.append(Block("table", "Steps", header=header, rows=rows, words=(6,)))
    rho = f"; neighbouring commits resemble each other ({case['rho']:.2f})" if case["rho"] else ""
    facts = [f"One commit scatters by {case['noise'] * 100:.2g} % around its level{rho}.",
             f"Steps below {case['min_magnitude'] * 100:.3g} % do not count.", f"Host {case['host_id']}."]  # fmt: skip
    blocks.append(Block("paragraph", " ".join(facts)))
    return Block("open-details" if open_ else "details", words, label=verdict, blocks=blocks)


def _name(case: Fields) -> str:
    settings = f" ({case['settings']})" if case["settings"] else ""
    return f"{case['case']} {case['implementation']}{settings}"


def _reading(fields: Fields) -> list[Block]:
    order = "in the order of the branch" if fields["by_commit"] else "in the order of their time"
    return [
        Block("paragraph", f"A mark is the median of all runs of one commit, {order}. A line is a level; between two "
              "levels lies a step, which is one that hardly any shuffling of the same values shows as well. A single "
              "bad run is no step, and neither is the wandering of a machine whose neighbouring runs resemble each "
              "other."),
        Block("paragraph", "A step for the worse is open until a later level is back where it was, or until somebody "
              "marks it: accepted (wanted, the new normal), environment (the machine changed) or fixed. A level that "
              "was left and taken again time after time is called back and forth, not slower."),
        Block("code", "kbench track mark CASE COMMIT accepted --why 'checks its bounds now'", label="Command"),
    ]  # fmt: skip
