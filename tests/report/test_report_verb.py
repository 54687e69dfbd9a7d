"""`kbench report` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_up_result import made_up
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), ["report", *arguments])
    if isinstance(result.exception, KbenchError):
        return result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.tune.json").write_text(json.dumps(made_up()))
    (tmp_path / "small.yaml").write_text(made_up()["rules"])
    return tmp_path


@pytest.mark.parametrize("result", ["small.tune.json", "small.yaml"])
def test_the_page_is_named_after_the_result(folder: Path, result: str) -> None:
    assert run(result).stdout == "small.html\n"
    assert (folder / "small.html").read_text().startswith("<!doctype html>")


def test_charts_are_svg_files_of_their_own(folder: Path) -> None:
    fields = json.loads(run("small.yaml", "-o", "deep/page.html", "--charts", "charts", "--json").stdout)
    assert fields["schema"] == "kbench.report/1" and fields["page"] == "deep/page.html"
    assert {Path(path).name for path in fields["charts"]} >= {
        "memory.svg", "placement.svg", "time-decode.svg", "roofline-cpu.svg", "roofline-cuda-0.svg", "vram.svg",
        "threads-prefill.svg", "block-0.svg", "prediction.svg",
    }  # fmt: skip
    for path in fields["charts"]:
        root = ElementTree.parse(folder / path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        style = root.find("{http://www.w3.org/2000/svg}style")
        # Colours as such: programs that turn SVG into pixels know no custom properties.
        assert style is not None and style.text and "var(" not in style.text
    assert sorted(path.name for path in (folder / "deep").iterdir()) == ["page.html"]


def test_charts_as_pixels(folder: Path) -> None:
    pytest.importorskip("resvg_py")
    run("small.yaml", "--charts", "charts", "--png")
    data = (folder / "charts" / "placement.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") == 2 * 760


def test_pixels_without_the_package_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    error = run("small.yaml", "--charts", "charts", "--png")
    assert isinstance(error, KbenchError) and error.exit_code == 4 and "pip install resvg-py" in error.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.tune.json"], "none.tune.json: cannot be read"),
        (["none.yaml"], "no result none.tune.json beside it"),
        (["bad.json"], "schema null"),
        (["small.yaml", "-o", "."], "a directory"),
        (["small.yaml", "--png"], "--png without --charts"),
        (["small.yaml", "--charts", "bad.json"], "bad.json: a file"),
    ],
)
def test_mistakes_are_told_in_one_message(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "bad.json").write_text("{}")
    error = run(*arguments)
    assert isinstance(error, KbenchError) and error.exit_code == 2 and words in error.message
    assert not list(folder.glob("*.html"))


def test_the_help_has_an_example() -> None:
    assert "kbench report kbench-rules/deepseek-v2-chat.tune.json -o report.html" in " ".join(
        run("--help").output.split()
    )
