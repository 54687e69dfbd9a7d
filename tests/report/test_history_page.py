"""Pages of histories and comparisons: what stands where, whole and escaped, every chart with its table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from made_up_history import COMMITS, history_fields
from made_up_rows import row, rows, sheet

from kbench.report import compare_page, history_page, history_rows
from kbench.report.block import charts_of
from kbench.report.chart import NARROW, WIDE
from kbench.report.compare_page import compare_sections
from kbench.report.history_page import history_sections

ATTACK = "\"'><img src=x onerror=\"document.title='taken'\"><script>1</script></style>{{ 7 * 7 }}\u202e\x00"
FIELDS = history_fields()


def hostile(value: Any) -> Any:
    """``ATTACK`` in every text but those that the program chooses."""
    kept = {"REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE", "open", "recovered", "improved", "flapping", "accepted",
            "lower", "higher", "seconds"}  # fmt: skip
    if isinstance(value, str):
        return value if value in kept else value[:12] + ATTACK
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) if key != "counts" else item for key, item in value.items()}
    return value


def elements(page: str) -> set[str]:
    """Elements of ``page``, with each attribute that they have."""
    found: set[str] = set()

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.update([tag, *(f"{tag} {name}" for name, _ in attrs)])

    Parser().feed(page)
    return found


def hostile_sheet() -> Any:
    return replace(sheet([replace(one, case=one.case + ATTACK, a=ATTACK, reason=ATTACK) for one in rows()]),
                   verb=ATTACK, host_id=ATTACK, notes=(ATTACK,))  # fmt: skip


@pytest.mark.parametrize(
    ("page", "usual"),
    [(lambda: history_page(hostile(FIELDS)), lambda: history_page(FIELDS)),
     (lambda: compare_page(hostile_sheet()), lambda: compare_page(sheet()))],
    ids=["history", "comparison"],
)  # fmt: skip
def test_nothing_from_a_file_becomes_markup(page: Callable[[], str], usual: Callable[[], str]) -> None:
    found = page()
    assert elements(found) <= elements(usual())  # elements with the names of their attributes
    assert "{{ 7 * 7 }}" in found
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", found)


@pytest.mark.parametrize("sections", [lambda: history_sections(FIELDS), lambda: compare_sections(sheet())])
def test_every_chart_can_be_read_without_seeing_it(sections: Callable[[], Any]) -> None:
    charts = charts_of(sections())
    assert len({chart.name for chart in charts}) == len(charts) >= 2
    for chart, width in itertools.product(charts, (WIDE, NARROW)):
        root = ElementTree.fromstring(chart.markup(width))
        words = [node.text or "" for node in root.iter() if node.tag.rpartition("}")[2] in ("title", "desc")]
        assert all(words) and chart.rows and len(chart.header) == len(chart.rows[0])
        for node in root.iter():
            for name in ("x", "cx", "x1", "x2"):
                assert -1 <= float(node.get(name, "0")) <= width + 1


def test_what_became_slower_comes_first_with_its_commit() -> None:
    sections = history_sections(FIELDS)
    assert [section.id for section in sections] == ["summary", "slower", "faster", "unknown", "same", "reading"]
    table = next(block for block in sections[0].blocks if block.kind == "table")
    assert [one[0].partition("(")[0] for one in table.rows] == ["linear", "prefill", "moe_experts"]
    assert table.rows[0][2:4] == ["11.9 % slower", COMMITS[80][:9]]
    slower = sections[1].blocks
    assert all(block.kind == "open-details" for block in slower) and slower[0].label == "slower"
    states = {block.text.partition("(")[0]: [one[6] for one in block.blocks[1].rows]
              for section in sections for block in section.blocks
              if block.blocks and block.blocks[1].kind == "table"}  # fmt: skip
    assert states["moe_experts"] == ["recovered", "faster", "still slower"]
    assert states["rope"] == ["accepted: checks its bounds now"] and states["attention"][-1] == "back and forth"


def test_a_mark_stands_where_its_commit_was_measured() -> None:
    chart = next(c for c in charts_of(history_sections(FIELDS)) if c.title.startswith("rms_norm"))
    root = ElementTree.fromstring(chart.markup(WIDE))
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == 120
    lefts = [float(node.get("cx", "")) for node in circles]
    assert lefts == sorted(lefts)
    case = next(case for case in FIELDS["cases"] if case["case"].startswith("rms_norm"))
    heights = [-float(node.get("cy", "")) for node in circles]
    order = sorted(range(120), key=lambda i: case["points"][i]["value"])[5:-5]
    assert [heights[i] for i in order] == sorted(heights[i] for i in order)


def test_rows_of_a_history_for_other_formats() -> None:
    found = {one.case.partition("(")[0]: one for one in history_rows(FIELDS)}
    assert found["linear"].verdict == "REGRESSED" and found["linear"].ratio == pytest.approx(1.12, abs=0.01)
    assert found["linear"].a == f"before {COMMITS[80][:12]}"
    assert found["prefill"].verdict == "REGRESSED" and found["prefill"].tokens == 1
    assert found["prefill"].ratio == pytest.approx(1 / 0.9, abs=0.01)
    assert found["decode"].verdict == "IMPROVED" and found["decode"].ratio == pytest.approx(1 / 1.3, abs=0.02)
    assert found["silu_mul"].verdict == "INCONCLUSIVE"


def test_a_page_of_very_many_cases_stays_one_that_opens() -> None:
    many = {**FIELDS, "cases": [dict(FIELDS["cases"][i % 8], case=f"case {i}") for i in range(160)]}
    assert len(history_page(many).encode()) < 8_000_000
    assert len(charts_of(history_sections(many))) == 150
    charts = charts_of(compare_sections(sheet([row(f"linear(n={n})", "SAME") for n in range(200)])))
    assert len(charts) == 1 and len(charts[0].rows) == 200
