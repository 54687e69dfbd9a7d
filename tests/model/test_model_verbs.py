"""`kbench inspect` and `kbench synth` from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import KbenchError


def run(*arguments: str) -> str:
    """What the program prints; its own errors come through as exceptions."""
    result = CliRunner().invoke(build_app(), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_inspect_shows_the_published_figures() -> None:
    text = run("inspect", "deepseek-v2-chat", "--phase", "decode")
    for figure in ("142,449,930,240", "235.741 B", "959", "12.519 GB", "69,120", "512, 483.6", "241.8", "0.075"):
        assert figure in text
    assert "Decode: 1 token, 4096 in the cache" in text
    assert "Prefill" not in text


def test_inspect_as_json() -> None:
    found = as_json("inspect", "deepseek-v2-lite-chat", "--context", "100", "--prompt-tokens", "7", "--kv", "f32")
    assert next(iter(found)) == "schema"
    assert found["schema"] == "kbench.inspect/1"
    assert found["model"]["n_tensors"] == 377
    assert found["phases"]["prefill"]["tokens"] == 7
    assert found["phases"]["decode"]["context"] == 100
    assert found["kv_bytes_per_token"] == 27 * 576 * 4
    assert sum(row["bytes"] for row in found["classes"]) == found["model"]["bytes"]


def test_inspect_a_file(tiny_gguf: Path) -> None:
    assert "4 heads on 2 kv heads of 64" in run("inspect", str(tiny_gguf))


def test_synth_writes_what_inspect_reads(tiny_gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.gguf"
    found = as_json("synth", str(tiny_gguf), "-o", str(target), "--seed", "3")
    assert found["schema"] == "kbench.synth/1"
    assert found["bytes"] == target.stat().st_size
    shapes = [as_json("inspect", str(path))["classes"] for path in (tiny_gguf, target)]
    assert shapes[0] == shapes[1]
    with pytest.raises(KbenchError, match="this file exists"):
        run("synth", str(tiny_gguf), "-o", str(target))
    assert "1 layers" in run("synth", str(tiny_gguf), "-o", str(target), "--force")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("inspect", "deepseek-v9"), "did you mean deepseek-v"),
        (("inspect", "deepseek-v3", "--quant", "Q4"), "unknown quantization 'Q4'"),
        (("inspect", "deepseek-v3", "--kv", "q8"), "cache type 'q8'"),
        (("synth", "deepseek-v3", "-o", "m.gguf", "--layers", "99"), "99 layers"),
        (("synth", "deepseek-v3", "-o", "no/such/m.gguf", "--layers", "1"), "no such folder"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(KbenchError) as error:
        run(*arguments)
    assert says in error.value.message
    assert error.value.exit_code == 2
