"""The pages in a browser: its style is applied, no name runs as a script, nothing sticks out, colours change."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_history import history_fields
from made_up_result import made_up
from made_up_rows import rows, sheet

from kbench.report import compare_page, history_page, html_page

# One load for everything: a frame as wide as a telephone, one as wide as a desktop, and what is asked of both.
_HARNESS = """<!doctype html><meta charset="utf-8"><body>
<iframe id="narrow" src="page.html" style="width:400px;height:800px"></iframe>
<iframe id="wide" src="page.html" style="width:1100px;height:800px"></iframe>
<pre id="found"></pre>
<script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    for (const details of page.querySelectorAll("details.case")) details.open = true;
    const style = e => frame.contentWindow.getComputedStyle(e);
    const ground = scheme => {
      page.getElementById("scheme-" + scheme).click();
      return style(page.body).backgroundColor;
    };
    const visible = e => e.getBoundingClientRect().width > 0;
    const drawn = [...page.querySelectorAll("svg")].filter(visible);
    const words = [...page.querySelectorAll("svg text")].filter(visible);
    const outside = words.filter(e => {
      const own = e.getBoundingClientRect(), box = e.ownerSVGElement.getBoundingClientRect();
      return own.left < box.left - 2 || own.right > box.right + 2 || own.bottom > box.bottom + 2;
    });
    found[frame.id] = {
      title: page.title, scripts: page.scripts.length, images: page.images.length,
      overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
      light: ground("light"), dark: ground("dark"),
      drawn: drawn.length, figures: page.querySelectorAll("figure").length,
      tall: drawn.filter(e => e.getBoundingClientRect().height > 20).length,
      words: words.length, outside: outside.map(e => e.textContent),
      reachable: page.querySelectorAll("a[href],input,summary,[tabindex='0']").length,
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""

_ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


def tune_page() -> str:
    fields = made_up()
    fields["model"]["name"] = f"Small {_ATTACK}"
    fields["ops"][0]["unit"] = _ATTACK
    return html_page(fields)


def page_of_histories() -> str:
    fields = history_fields()
    fields["suite"] = fields["cases"][0]["implementation"] = fields["cases"][0]["points"][3]["commit"] = _ATTACK
    return history_page(fields)


def page_of_a_comparison() -> str:
    judged = [row for row in rows() if row.ratio is not None]
    samples = {"a_samples": (0.001,) * 12, "b_samples": tuple(0.001 + 1e-5 * (i % 5) for i in range(12))}
    return compare_page(sheet([replace(row, a=_ATTACK, extra=samples) for row in judged]))


@pytest.mark.parametrize("page", [tune_page, page_of_histories, page_of_a_comparison])
def test_the_page_in_a_browser(chromium: str, tmp_path: Path, page: Callable[[], str]) -> None:
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    (tmp_path / "harness.html").write_text(_HARNESS, encoding="utf-8")
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
        "--virtual-time-budget=4000", "--dump-dom",
        (tmp_path / "harness.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []  # the policy refused nothing, so nothing asked for more than it allows
    (text,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    for frame in json.loads(html.unescape(text)).values():
        assert frame["title"] != "taken" and _ATTACK in frame["title"]
        assert frame["scripts"] == frame["images"] == 0
        assert frame["overflow"] <= 0
        assert frame["light"] == "rgb(255, 255, 255)" and frame["dark"] == "rgb(20, 24, 31)"
        assert frame["drawn"] == frame["figures"] == frame["tall"] > 5
        assert frame["words"] > 50 and frame["outside"] == []
        assert frame["reachable"] > 20
