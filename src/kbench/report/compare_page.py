"""A comparison as a page: all ratios in one picture, and every case to look into."""

from __future__ import annotations

from collections.abc import Sequence

from kbench.results import BROKEN, VerdictRow, by_importance

from .block import Block, Section
from .compare_table import verdict_text
from .formats import Sheet
from .formats.step_summary import headline
from .page import render_page
from .pairs_chart import pairs_chart
from .quantity import change
from .ratio_chart import case_name, ratio_chart, side_speed

# As on the page of histories: a browser opens this many at once.
_MOST_CHARTS = 150
_ONE_SIDED = {"new": "only B has it", "gone": "only A has it"}


def compare_page(sheet: Sheet) -> str:
    """The page for the rows of `kbench compare` and `kbench track check`."""
    sides = list(dict.fromkeys((row.a, row.b) for row in sheet.rows))
    title_more = f"{sides[0][0]} and {sides[0][1]}" if len(sides) == 1 else f"{len(sheet.rows)} cases"
    about = [f"host {sheet.host_id}", sheet.commit[:12], sheet.created[:10]]
    footer = f"Made by kbench {sheet.version} from one run of {sheet.verb}."
    subtitle = " · ".join(part for part in about if part)
    return render_page("Comparison", title_more, "comparison", subtitle, compare_sections(sheet), footer)


def compare_sections(sheet: Sheet) -> list[Section]:
    """Those that ``sheet`` has something for."""
    rows = by_importance(sheet.rows)
    chart = ratio_chart(rows, sheet.change)
    found = [
        Section("summary", "Summary", _summary(sheet)),
        Section("ratios", "All cases", [Block("chart", chart=chart)] if chart is not None else []),
    ]
    groups = (
        ("broken", "Broken", [row for row in rows if row.outcome in BROKEN]),
        ("slower", "B is slower", [row for row in rows if row.verdict == "REGRESSED"]),
        ("unknown", "Not known", [row for row in rows if _is_unknown(row)]),
        ("faster", "B is faster", [row for row in rows if row.verdict == "IMPROVED"]),
        ("same", "The same", [row for row in rows if row.verdict == "SAME"]),
    )
    number = 0
    for name, title, members in groups:
        blocks = []
        for row in members:
            blocks.append(_case(sheet, row, f"pairs-{number}", number < _MOST_CHARTS))
            number += 1
        found.append(Section(name, f"{title}: {len(members)}", blocks))
    found.append(Section("reading", "How to read it", _reading()))
    return [section for section in found if section.blocks]


def _is_unknown(row: VerdictRow) -> bool:
    return row.outcome not in (*BROKEN, "REGRESSED", "IMPROVED", "SAME")


def _summary(sheet: Sheet) -> list[Block]:
    def counted(verdict: str) -> int:
        return sum(row.verdict == verdict for row in sheet.rows)

    slowest = max((row.ratio for row in sheet.rows if row.verdict == "REGRESSED" and row.ratio), default=None)
    fastest = min((row.ratio for row in sheet.rows if row.verdict == "IMPROVED" and row.ratio), default=None)
    figures = [
        ("Cases", str(len(sheet.rows)), f"{sum(row.n_pairs for row in sheet.rows)} pairs in all"),
        ("B is slower in", str(counted("REGRESSED")), f"{change(slowest)} at most" if slowest else ""),
        ("B is faster in", str(counted("IMPROVED")), f"{change(fastest)} at most" if fastest else ""),
        ("Not known", str(sum(_is_unknown(row) for row in sheet.rows)), f"{counted('SAME')} the same"),
    ]
    said = headline(sheet) if sheet.change else ""
    words = [Block("paragraph", said[:1].upper() + said[1:] + ".")] if said else []
    return [Block("figures", rows=figures), *words, *(Block("note", note) for note in sheet.notes)]


def _case(sheet: Sheet, row: VerdictRow, name: str, drawn: bool) -> Block:
    found = change(row.ratio) if row.ratio else row.reason or _ONE_SIDED.get(row.status, "")
    words = ": ".join(filter(None, [case_name(row), found]))
    facts: list[tuple[str, str]] = [
        ("A", f"{row.a}: {side_speed(row, row.a_seconds)}"),
        ("B", f"{row.b}: {side_speed(row, row.b_seconds)}"),
        ("B's time over A's", f"{row.ratio:.5g}" if row.ratio else ""),
        ("interval", f"{row.low:.5g} to {row.high:.5g}" if row.low is not None and row.high is not None else ""),
        ("covers it with", f"{row.confidence:.2%}" if row.confidence else ""),
        ("chance of it within the margin", f"{row.p:.2g}" if row.p is not None else ""),
        ("pairs", str(row.n_pairs) if row.n_pairs else ""),
        ("blocks of A and of B", " and ".join(map(str, row.n_blocks)) if any(row.n_blocks) else ""),
        ("confirmed by fresh pairs", str(row.n_confirmed_by) if row.n_confirmed_by else ""),
        ("margin", f"{row.margin:.1%}"),
        ("threads", str(row.threads) if row.threads else ""),
        ("measured part", str(row.extra.get("subset") or "")),
        ("why", row.reason),
        *(("thrown away and taken again", str(text)) for text in _texts(row.extra.get("discarded"))),
    ]
    chart = pairs_chart(row, name) if drawn else None
    blocks = [Block("chart", chart=chart)] if chart is not None else []
    rows = [[what, value] for what, value in facts if value]
    blocks.append(Block("table", "What was found", header=["what", "found"], rows=rows, words=(1,)))
    label = verdict_text(row.verdict, row.a, row.b, sheet.change) if row.verdict else row.outcome
    return Block("details", words, label=label, blocks=blocks)


def _texts(value: object) -> Sequence[object]:
    return value[:20] if isinstance(value, (list, tuple)) else ()


def _reading() -> list[Block]:
    return [
        Block("paragraph", "Sides take turns A B, B A, and each pair gives a ratio; the estimate is the median of the "
              "averages of all pairs of pairs, and the interval covers it whatever the noise looks like. A verdict "
              "of faster or slower means that the interval leaves no change out, that the estimate lies beyond the "
              "margin, and that fresh pairs have said so again; of the same, that the whole interval lies within the "
              "margin. Otherwise nothing is known. Stored blocks are no pairs: their interval is wider."),
    ]  # fmt: skip
