"""Models in several files run as they do in one, in as much memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from split_files import split_file
from tiny_models import make_tiny

from kbench.core import Phase
from kbench.engine import load_model
from kbench.engine.peers import BEGINNING, engine_turns
from kbench.engine.weights import WeightStore
from kbench.model import describe_gguf, lower, open_gguf, stored_bytes, synthesize

IDS = list(range(1, 1 + BEGINNING))


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe", "deepseek2"])
def test_logits_are_the_whole_files(architecture: str, tmp_path: Path) -> None:
    whole = tmp_path / "m.gguf"
    synthesize(make_tiny(architecture), whole)
    parts = split_file(whole, 5)
    assert len(parts) > 3
    seen: list[tuple[int, int]] = []
    expected = load_model(whole, context=32, threads=1)
    found = load_model(parts[1], context=32, threads=1, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_array_equal(found.logits(IDS), expected.logits(IDS))
    assert found.report.file_bytes == expected.report.file_bytes == seen[-1][0] == seen[-1][1]
    assert found.report.weight_bytes == expected.report.weight_bytes


def test_llama_cpp_is_given_the_first_part(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    whole = tmp_path / "m.gguf"
    synthesize(make_tiny("llama", "F16"), whole)
    parts = split_file(whole, 9)
    request: dict[str, Any] = {"prompt": IDS, "beginning": IDS, "generated": [], "logits": True}
    theirs, ours = (
        next(iter(engine_turns(engine, path, 1, 32)[0].values()))(request)
        for engine, path in (("llama.cpp", parts[2]), ("kbench", parts[2]))
    )
    # Keys and values in f16, activations rounded to f16 there: some 1e-3 of logits about 1.
    np.testing.assert_allclose(ours, theirs, atol=2e-2)


def resident_bytes(paths: list[Path]) -> int:
    """Of the files' mappings, in this process."""
    found, names, counted = 0, {str(path) for path in paths}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            counted = words[-1] in names
        elif counted and words[0] == "Rss:":
            found += 1024 * int(words[1])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps")
def test_packed_weights_leave_no_page_of_any_part(tmp_path: Path) -> None:
    whole = tmp_path / "m.gguf"
    synthesize(make_tiny("llama", "F32", n_layers=1, ffn=8192), whole)
    parts = split_file(whole, 4)
    store = WeightStore(open_gguf(parts[0]))
    calls = lower(describe_gguf(store.gguf), {}, Phase.DECODE, 1, 8, resolve=lambda problem, device: "reference")
    begins = [store.gguf.tensors[call.weights[0]].begin for call in store.missing(calls) if call.weights]
    assert begins == sorted(begins)
    store.prepare(calls)
    held = resident_bytes(parts)
    # Pages that two tensors share, and those that the kernel maps around a fault (64 KiB), stay.
    assert held < len(store.gguf.tensors) * 2 * (64 << 10) < stored_bytes(parts[0]) / 4
    assert sum(int(tensor.raw.max()) for tensor in store.gguf.tensors.values()) > 0
    assert resident_bytes(parts) > stored_bytes(parts[0]) / 2  # so it is seen when they are there
