"""The page of a result: whole, escaped, readable without its drawings, and quiet towards the network."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_up_result import bare, made_up

from kbench.core import CorruptFile
from kbench.report import html_page
from kbench.report.block import charts_of
from kbench.report.chart import NARROW, WIDE, Chart
from kbench.report.palette import COLOURS
from kbench.report.placement_map import numbers_of
from kbench.report.section import sections
from kbench.results import read_tune_result

_VOID = {"meta", "input", "br", "img", "link", "rect", "line", "circle", "polyline"}


class Parsed(HTMLParser):
    """Elements with attributes in document order, text by element name, and whether tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID or tag in ("rect", "circle"):  # these two may hold a title
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def hostile(value: Any, attack: str) -> Any:
    """``attack`` in place of every text, and of every key that a file may choose; what readers check stays."""
    kept = {
        "kbench.tune/1", "measured", "modelled", "decode", "prefill", "optimal", "transfer", "attention",
        "routed experts", "default",
    }  # fmt: skip
    if isinstance(value, str):
        return value if value in kept or re.fullmatch(r"[0-9,-]*", value) else f"{value[:2]}{attack}"
    if isinstance(value, list):
        return [hostile(item, attack) for item in value]
    if isinstance(value, dict):
        free = set(value) in (
            {"cpu", "cuda:0"},
            {"kbench"},
            {"whole layers", "n-cpu-moe"},
        )  # devices, versions, presets
        return {f"{key}{attack}" if free else key: hostile(item, attack) for key, item in value.items()}
    return value


ATTACKS = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "' onload='x' style='color:red",
    "</style></title></svg></pre></textarea>--><b>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;script&gt;&#60;b&#62;",
    "]]><![CDATA[",
    "\u202e\u2066\x00\x1b[31m\x7f\ufffe\ud800",
    "a\n\u202e\ud800",
    "a" * 100_000,
    "a\n" * 50_000,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_nothing_from_a_file_becomes_markup(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "r.tune.json"
    path.write_text(json.dumps(hostile(made_up(), attack)))
    fields = read_tune_result(path)
    usual, page = Parsed(html_page(made_up())), html_page(fields)
    found = Parsed(page)
    assert found.open == []
    # The same kinds of elements and attributes as on a page of honest names.
    for tag in {name for name, _ in found.elements}:
        allowed = {name for attributes in usual.named(tag) for name in attributes}
        assert usual.named(tag), tag
        assert all(set(attributes) <= allowed for attributes in found.named(tag)), tag
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    assert len(page.encode()) < 2_000_000
    for chart in charts_of(sections(fields)):
        root = ElementTree.fromstring(chart.file())  # an XML parser is strict
        assert {node.tag.rpartition("}")[2] for node in root.iter()} <= {
            "svg", "title", "desc", "style", "rect", "line", "polyline", "circle", "text",
        }  # fmt: skip
        assert re.fullmatch(r"[a-z0-9-]{1,40}", chart.name), "it becomes a file's name"


@pytest.mark.parametrize("fields", [made_up(), bare()], ids=["made_up", "bare"])
def test_the_page_loads_nothing_and_allows_only_its_own_style(fields: dict[str, Any]) -> None:
    page = html_page(fields)
    found = Parsed(page)
    for _, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("style", "src", "srcset", "action", "data"), name
            assert name != "href" or (value or "").startswith("#")
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert {"script", "link", "iframe", "object", "form"}.isdisjoint(name for name, _ in found.elements)
    (policy,) = [m["content"] for m in found.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert len(page.encode()) < 500_000


def test_every_drawing_says_in_words_and_in_a_table_what_it_shows() -> None:
    page = Parsed(html_page(made_up()))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings = page.named("svg")
    assert len(drawings) == 2 * len(charts_of(sections(made_up())))
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert set((drawing["aria-labelledby"] or "").split()) <= set(ids)
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set((attributes.get(name) or "").split()) <= set(ids)
        href = attributes.get("href")
        assert href is None or href[1:] in ids
    assert len(page.named("figure")) == len(page.named("details")) == len(drawings) / 2
    assert all(th.get("scope") in ("col", "row") for th in page.named("th"))
    assert len(page.named("caption")) == len(page.named("table"))
    # What scrolls can be reached and is named; nothing is taken out of the keyboard's order.
    scrolling = [a for name, a in page.elements if name in ("div", "pre") and a.get("role") == "region"]
    assert scrolling and all(a.get("tabindex") == "0" and a.get("aria-label") for a in scrolling)
    assert not [a for _, a in page.elements if a.get("tabindex") not in (None, "0")]
    (first_link, *_) = page.named("a")
    assert first_link["class"] == "skip"
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    (html,) = page.named("html")
    assert html["lang"] == "en"


def test_the_words_of_the_page_hold_the_result() -> None:
    text = " ".join(html_page(made_up()).split())
    for words in (
        "Small-MoE", "14 tokens/s", "measured 13; predicted", "off by +8.0 % and -2.0 %",
        "no kernel for routed experts",
        "while measuring: other processes used 46% of the CPU time", "With 8 GiB it would write 18 tokens per second",
        "kbench generate small.gguf --rules kbench-rules/small.yaml", "that is proven", "^lm_head$", "A processor",
    ):  # fmt: skip
        assert words in text.replace("&#39;", "'"), words
    unproven = html_page({**made_up(), "measured": None, "error": None, "measured_reason": "no weights"})
    assert "modelled from the data sheet of the A card" in unproven and "Not measured: no weights" in unproven


def test_a_batch_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "r.tune.json"
    asked = {**made_up()["workload"], "batch": 4, "objective": "decode"}
    path.write_text(json.dumps({**made_up(), "workload": asked}))
    text = " ".join(html_page(read_tune_result(path)).split())
    assert "fastest for writing writes about 14 tokens per second, 4 sequences together, and" in text
    # 4 x 128 tokens at 14 a second of all together.
    assert "4 answers at once of 128 tokens about 36.6 seconds more" in text
    assert "Milliseconds of one written token of each of 4 sequences" in text
    assert "an answer of 128 tokens about 9.14 seconds more" in html_page(made_up())


def test_what_was_not_measured_is_not_said_to_be() -> None:
    unproven = {**made_up(), "measured": None, "error": None}
    assert "Times on the CPU were measured on A processor; times on the GPU" in html_page(unproven)
    assert "predicted, GPU modelled, the rest measured" in html_page(unproven)
    for row in unproven["ops"]:
        if row["op"] == "moe_experts":
            row["source"] = "modelled"
    page = html_page(unproven)
    assert "measured on A processor, but those of moe_experts are modelled from" in page
    assert "predicted, GPU and part of the CPU modelled, the rest measured" in page
    assert "this machine" not in page and "this machine" not in html_page(made_up())


def test_what_more_gpu_memory_brings_is_said_as_far_as_it_was_tried() -> None:
    def told(*curve: tuple[int, float]) -> str:
        points = [
            {"vram_bytes": gib << 30, "used_bytes": 1, "decode_tokens_per_s": r, "prefill_tokens_per_s": 1.0}
            for gib, r in curve
        ]
        return html_page({**made_up(), "vram_curve": points})  # its budget is 4 GiB

    assert "More GPU memory, up to 48 GiB was tried, would not make it" in told((0, 1.0), (4, 2.0), (48, 2.01))
    assert "less than one percent" in told((0, 1.0), (4, 2.0), (48, 2.01))
    for curve in [((0, 1.0), (4, 2.0)), ((0, 1.0), (4, 2.0), (8, 2.5))]:
        page = told(*curve)
        assert "More GPU memory" not in page and "less than one percent" not in page


def test_a_result_with_nothing_but_what_it_must_have_is_shown() -> None:
    found = [section.id for section in sections(bare())]
    assert found == ["summary", "memory", "placement", "time", "prediction", "machine"]
    empty = {**bare(), "ops": []}
    assert "Small-MoE" in html_page(empty)
    zeros = bare()
    zeros["predicted"] |= {"decode_tokens_per_s": 0, "prefill_tokens_per_s": 0}
    zeros["placement"] = {"cpu": dict.fromkeys(zeros["placement"]["cpu"], 0)}
    for row in zeros["ops"]:
        row |= {"seconds": 0, "flops": 0, "ai_touched": 0, "n_calls": 0}
    assert "Small-MoE" in html_page(zeros)


def test_numbers_at_the_ends_of_what_readers_accept_are_drawn(tmp_path: Path) -> None:
    def every(value: Any, number: float) -> Any:
        if isinstance(value, dict):
            return {key: every(item, number) for key, item in value.items()}
        if isinstance(value, list):
            return [every(item, number) for item in value]
        return number if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    for number in (0, 1e-300, 1, 1e30):
        path = tmp_path / "r.tune.json"
        path.write_text(json.dumps(every(made_up(), number)))
        try:
            assert "Small-MoE" in html_page(read_tune_result(path))
        except CorruptFile:
            pytest.fail(f"{number} is a number that the reader accepts")


@pytest.mark.parametrize(
    ("folded", "numbers"),
    [("0-3,7", [0, 1, 2, 3, 7]), ("", []), ("5", [5]), ("0-999999999", []), ("3-1", []), ("998-1005", [998, 999])],
)
def test_layers_are_unfolded_within_bounds(folded: str, numbers: list[int]) -> None:
    assert numbers_of(folded) == numbers


def _widths(chart: Chart, width: float, style: str) -> list[float]:
    root = ElementTree.fromstring(chart.markup(width))
    rects = (node for node in root.iter() if node.tag.endswith("rect") and node.get("class") == style)
    return [float(node.get("width", "")) for node in rects]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_lengths_are_what_they_stand_for(width: float) -> None:
    charts = {chart.name: chart for chart in charts_of(sections(made_up()))}
    memory = charts["memory"]
    (cpu, gpu), frames = _widths(memory, width, "f-weights")[1:], _widths(memory, width, "free")[1:]  # after the legend
    assert cpu / frames[0] == pytest.approx(5 / 8, abs=1e-3) and gpu / frames[1] == pytest.approx(1 / 4, abs=1e-3)
    # In the map attention's first four layers are the GPU's.
    cells = _widths(charts["placement"], width, "f-device1")[1:]
    room = _widths(charts["placement"], width, "track")[0]
    assert cells[0] == pytest.approx(4 / 6 * room, abs=2) and cells[1] == pytest.approx(room, abs=2)


def test_points_of_the_roofline_lie_under_their_roof() -> None:
    chart = next(chart for chart in charts_of(sections(made_up())) if chart.name == "roofline-cpu")
    root = ElementTree.fromstring(chart.markup(WIDE))
    places = [
        (float(node.get("cx", "")), float(node.get("cy", "")), node[0].text or "")
        for node in root.iter()
        if node.tag.endswith("circle")
    ]
    # Experts: 2 MFLOP in 2 ms at 2 FLOP/byte, 1 GFLOP/s; the roof there is 2 x 20 GB/s.
    x, y, title = next(place for place in places if "routed experts, decode" in place[2])
    assert "1 GFLOP/s at 2 FLOP/byte, 2.5% of the roof" in title
    roof = next(node for node in root.iter() if node.tag.endswith("polyline") and node.get("class") == "mark")
    corners = [tuple(map(float, pair.split(","))) for pair in roof.get("points", "").split()]
    (x0, y0), (x1, y1) = corners[:2]
    assert x0 < x < x1 and y > y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(side: int) -> None:
    def at(name: str) -> str:
        return COLOURS[name][side]

    for ground in ("page", "panel"):
        for text in ("ink", "soft", "link", "warn"):
            assert _contrast(at(text), at(ground)) >= 4.5, (text, ground)
    for name in COLOURS:
        if name.startswith(("device", "line")) or name in (
            "weights",
            "cache",
            "workspace",
            "runtime",
            "pinned",
            "loading",
            "margin",
        ):
            assert _contrast(at(name), at("page")) >= 4.5, name
            assert _contrast(at("on"), at(name)) >= 4.5, name
