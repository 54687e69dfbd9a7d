"""`kbench generate` and `kbench chat` from the outside: output, exit codes, one message per mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbench import engine
from kbench.cli.main import main
from kbench.model import describe_gguf, open_gguf

TIMEOUT = 300


def kbench(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kbench", *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def report(*arguments: str | Path) -> dict[str, Any]:
    done = kbench(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_greedy_english_streamed_and_as_json(smollm2_path: Path) -> None:
    # Every token is 1.5 or more ahead of the next: no rounding changes it.
    request = "Repeat after me: Good morning, dear friends!"
    question = ["generate", smollm2_path, "--prompt", request, "--temperature", "0", "-n", "16"]
    streamed = kbench(*question)
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout == "Good morning, dear friends!\n"
    assert "tokens/s" in streamed.stderr
    answer = report(*question)
    assert next(iter(answer)) == "schema" and answer["schema"] == "kbench.generate/1"
    assert answer["text"] == "Good morning, dear friends!" and answer["stop"] == "eos"
    assert answer["decode_tokens"] == len(answer["token_ids"]) - 1
    assert len(answer["token_seconds"]) == len(answer["token_ids"])


def test_several_prompts_are_answered_at_once(smollm2_path: Path) -> None:
    prompts = ["The first ten numbers are one, two, three, four, five, six,", "a b c d e f g h i j k l m n"]
    given = [word for prompt in prompts for word in ("-p", prompt)]
    found = report("generate", smollm2_path, *given, "--raw", "-n", "4", "--temperature", "0", "--context", "64")
    assert found["schema"] == "kbench.generate-batch/1" and found["sequences"] == 2
    assert [answer["text"] for answer in found["answers"]] == [" seven, eight,", " o p q r"]
    assert [answer["prompt"] for answer in found["answers"]] == prompts


def test_a_prompt_from_a_file_raw(smollm2_path: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("The first ten numbers are one, two, three, four, five, six,")
    answer = report("generate", smollm2_path, "-f", prompt, "--raw", "-n", "4", "--temperature", "0")
    assert answer["text"] == " seven, eight,"
    assert answer["prompt_tokens"] < 20  # no template around it


def test_a_piped_chat_remembers(smollm2_path: Path) -> None:
    lines = "My name is Alice. Remember it.\n/nonsense\n\nWhat is my name?\n/stats\n/exit\nnever read\n"
    done = kbench("chat", smollm2_path, "--temperature", "0", "-n", "24", "--json", stdin=lines)
    assert done.returncode == 0, done.stderr
    talk = json.loads(done.stdout)
    assert [message["role"] for message in talk["messages"]] == ["user", "assistant"] * 2
    assert "unknown command /nonsense" in done.stderr and "tokens/s" in done.stderr
    # System message, two questions and an answer are some 80 tokens; running the beginning twice would be 120.
    assert talk["prefill_tokens"] < 100


def test_a_chat_that_runs_out_of_context_says_so_and_goes_on(smollm2_path: Path) -> None:
    lines = f"{'word ' * 200}\n/reset\nhi\n"
    done = kbench("chat", smollm2_path, "--temperature", "0", "-n", "3", "--context", "64", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "do not fit a context of 64" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["generate", "MODEL"], 2, ["no prompt", "--prompt"]),
        (["generate", "MODEL", "--prompt", "x", "--file", "y"], 2, ["--prompt and --file"]),
        (
            ["generate", "MODEL", "--file", "nowhere.txt"],
            2,
            ["nowhere.txt: cannot be read: No such file or directory ·"],
        ),
        (["generate", "MODEL", "--prompt", ""], 2, ["no tokens"]),
        (["generate", "MODEL", "--prompt", "x", "--temperature", "-1"], 2, ["temperature", "-1"]),
        (["generate", "MODEL", "--prompt", "x", "--top-p", "2"], 2, ["top_p"]),
        (["generate", "MODEL", "--prompt", "x", "--implementation", "cpu.avx"], 2, ["did you mean cpu.avx2?"]),
        (["generate", "MODEL", "--prompt", "x", "--block", "planes"], 2, ["--block: 'planes'", "NAME=VALUE"]),
        (
            ["chat", "MODEL", "--block", "activation_plans=1"],
            2,
            ["--block: unknown", "did you mean activation_planes?"],
        ),
        (["generate", "MODEL", "--prompt", "x", "--context", "0"], 2, ["context"]),
        (["generate", "MODEL", "--prompt", "x" * 400, "--context", "20"], 2, ["context of 20", "--context"]),
        (["generate", "MODEL", "--prompt", "x", "--rules", "none.yaml"], 2, ["none.yaml"]),
        (["chat", "MODEL"], 2, ["no chat template"]),
    ],
)
def test_a_mistake_is_one_message_and_an_exit_code(
    tiny_gguf: Path,
    arguments: list[str],
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: starting one takes longer than all of these."""
    given = [str(tiny_gguf) if a == "MODEL" else a for a in arguments]
    assert here(monkeypatch, *given) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err and out == ""
    for word in words:
        assert word in err


def here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of ``kbench`` in this process."""
    monkeypatch.setattr(sys, "argv", ["kbench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_no_traceback_from_a_process_of_its_own() -> None:
    done = kbench("generate", "none.gguf", "--prompt", "x")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("kbench: none.gguf: no such file") and "Traceback" not in done.stderr


def test_what_is_interrupted_says_what_it_did_and_ends_with_130(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode, n = engine.Session.decode, 0

    def interrupted(session: engine.Session, token: int) -> Any:
        nonlocal n
        n += 1
        if n == 3:
            raise KeyboardInterrupt
        return decode(session, token)

    monkeypatch.setattr(engine.Session, "decode", interrupted)
    question = ("generate", str(tiny_gguf), "--prompt", "x", "--raw", "--ignore-eos", "-n", "9", "--seed", "1")
    assert here(monkeypatch, *question) == 130
    assert "decode 2 tokens" in capsys.readouterr().err
    n = 0
    assert here(monkeypatch, *question, "--json") == 130
    assert json.loads(capsys.readouterr().out)["stop"] == "interrupt"


def test_of_several_prompts_what_there_is_is_kept(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode, n = engine.Session.decode_batch, 0

    def interrupted(session: engine.Session, *given: Any) -> Any:
        nonlocal n
        n += 1
        if n == 4:
            raise KeyboardInterrupt
        return decode(session, *given)

    monkeypatch.setattr(engine.Session, "decode_batch", interrupted)
    question = ("generate", str(tiny_gguf), "-p", "x", "-p", "y", "--raw", "--ignore-eos", "-n", "9", "--seed", "1")
    assert here(monkeypatch, *question, "--json") == 130
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [(answer["stop"], len(answer["token_ids"])) for answer in answers] == [("interrupt", 4)] * 2
    n = 0
    assert here(monkeypatch, *question) == 130
    shown = capsys.readouterr()
    assert shown.out.count("[1] ") == shown.out.count("[2] ") == 1 and "decode 6 tokens" in shown.err


def test_of_no_tokens_there_is_no_rate(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(monkeypatch, "generate", str(tiny_gguf), "--prompt", "x", "--raw", "-n", "0") == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("prefill ") and "· decode 0 tokens · stopped by" in last


def test_a_context_beyond_the_models_is_warned_of(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = describe_gguf(open_gguf(tiny_gguf)).context_length
    question = ("generate", str(tiny_gguf), "--prompt", "x", "--raw", "-n", "1", "--context")
    assert here(monkeypatch, *question, str(trained)) == 0 and "trained for" not in capsys.readouterr().err
    assert here(monkeypatch, *question, str(trained + 1)) == 0
    assert f"was trained for {trained}: what it says beyond" in capsys.readouterr().err


def test_more_memory_than_there_is_is_over_budget(smollm2_path: Path) -> None:
    # 92160 bytes a token: 1.4 TB.
    done = kbench("generate", smollm2_path, "--prompt", "x", "--context", "16000000", "--kv", "f32")
    assert done.returncode == 1, done.stderr
    assert "short" in done.stderr and "--context" in done.stderr and "Traceback" not in done.stderr
