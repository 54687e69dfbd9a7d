"""What comes from files reaches a terminal as text: nothing in it is obeyed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.cli.output import _Trimmed, fail, plural, shown
from kbench.core import UserError
from kbench.tuner import TuneRequest
from kbench.tuner.tune import plan_of

CLEAR = "\x1b[2J\x1b]0;title\x07"


@pytest.mark.parametrize("evil", ["\x1b", "\x07", "\r", "\x08", "\x7f", "\x9b", "\u202e", "\ud800"])
def test_what_a_terminal_would_obey_is_shown_as_an_escape(evil: str) -> None:
    assert evil not in shown(f"a{evil}b") and shown(f"a{evil}b").startswith("a\\")


def test_text_stays_as_it_is() -> None:
    text = "é 漢字\u3000👩\u200d💻 می\u200cخواهم\n\ttab\u00a0"
    assert shown(text) == text


def test_errors_quote_names_from_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(UserError(f"tensor {CLEAR}" + "x" * 100_000 + "\nnext", where="f")) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told and "\\x1b[2J" in told and told.endswith("next\n") and len(told) < 3000


def test_rules_with_escapes_and_markup(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text('- match: {name: "\\e[2J("}\n  replace: {class: "\\e[2J"}\n')
    told = CliRunner().invoke(build_app(), ["rules", "check", str(path)]).output
    assert "error" in told and "\x1b" not in told
    path.write_text('kbench: 1\nrules:\n- match: {name: "^lm_head$"}\n  replace: {class: "pkg.x[/red]"}\n')
    result = CliRunner().invoke(
        build_app(), ["rules", "explain", str(path), "lm_head", "-m", "deepseek-v2-lite-chat", "--trust", "pkg"]
    )
    assert result.exception is None and "x[/red]" in result.output


def test_a_bench_list_with_escapes(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text('suite: 1\nname: s\nops: {linear: {quant: "\\e[2J", n: 32, k: 32, tokens: 1}}\n')
    result = CliRunner().invoke(build_app(), ["bench", str(path), "--list"])
    assert "\x1b" not in result.output


def test_lines_of_piped_tables_end_where_their_text_does() -> None:
    result = CliRunner().invoke(build_app(), ["inspect", "deepseek-v2-lite-chat"])
    lines = result.output.splitlines()
    assert len(lines) > 50 and [line for line in lines if line.endswith(" ")] == []


def test_trimming_keeps_blanks_inside_a_line_that_comes_in_parts() -> None:
    kept = io.StringIO()
    trimmed = _Trimmed(kept)
    for part in ("a  ", " b ", "\n  c   \n", "d "):
        trimmed.write(part)
    assert kept.getvalue() == "a   b\n  c\nd"


@pytest.mark.parametrize(
    ("count", "noun", "told"), [(1, "rule", "1 rule"), (0, "rule", "0 rules"), (2, "info", "2 info")]
)
def test_counts_have_their_plural(count: int, noun: str, told: str) -> None:
    assert plural(count, noun) == told


def test_options_that_would_be_ignored_are_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    for arguments in (["inspect", str(tiny_gguf)], ["synth", str(tiny_gguf), "-o", str(tmp_path / "out.gguf")]):
        with pytest.raises(UserError, match=r"--quant: 'Q8_0'.*leave --quant out"):
            CliRunner().invoke(build_app(), [*arguments, "--quant", "Q8_0"], catch_exceptions=False)
    with pytest.raises(UserError, match=r"--quant: 'Q8_0'.*leave --quant out"):
        plan_of(TuneRequest(model=str(tiny_gguf), quant="Q8_0"))
    assert not (tmp_path / "out.gguf").exists()
    with pytest.raises(UserError, match="did you mean rtx4090"):
        CliRunner().invoke(build_app(), ["tune", "--gpu", "rtx409"], catch_exceptions=False)
