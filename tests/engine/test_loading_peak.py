"""The most memory that loading takes at any time: what is placed, and the tensors of one call, as the file has them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_tiny

from kbench.model import describe_gguf, open_gguf, stored_bytes, synthesize

# Loads the file, and tells in bytes: resident memory before, the most since, what the weights and the rest take.
_LOAD = """
import json, re, sys
from pathlib import Path
from kbench.core import Placement
from kbench.engine import load_model
def resident(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
def load(path):
    return load_model(path, threads=1, context=64, chunk=8, default=Placement(generate_op="auto", prefill_op="auto"))
small = load(sys.argv[1])  # imports, native code, tokenizer: what every model takes
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = resident("VmRSS")
report = load(sys.argv[2]).report
placed = report.weight_bytes + report.kv_bytes + report.workspace_bytes
print(json.dumps({"before": before, "peak": resident("VmHWM"), "placed": placed, "weights": report.weight_bytes}))
"""
# Pages that two tensors share and those that the kernel maps around a fault (64 KiB at either end of each of some 50
# tensors), the ends of allocations in huge pages of 2 MiB, Python's objects for calls and programs.
_REST_BYTES = 16 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc/self/clear_refs")
def test_loading_holds_what_is_placed_and_the_tensors_of_one_call(tmp_path: Path) -> None:
    """Weights are packed into memory of their own. A loader that let the file's pages stay would hold all twice, and so
    would one that read it first: far more than the bound. One call reads three tensors at most, a layer's experts."""
    small, path = tmp_path / "small.gguf", tmp_path / "large.gguf"
    model = make_tiny("qwen3moe", "Q8_0")
    assert model.moe is not None
    synthesize(model, small)
    experts = dataclasses.replace(model.moe, n=1024)
    synthesize(make_tiny("qwen3moe", "Q8_0", n_layers=7, d=1024, moe=experts), path)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(small), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    one_tensor = max(tensor.n_bytes for tensor in describe_gguf(open_gguf(path)).tensors)
    assert one_tensor < stored_bytes(path) / 10
    allowed = told["placed"] + 3 * one_tensor + _REST_BYTES
    grown = told["peak"] - told["before"]
    assert told["weights"] > 0.9 * stored_bytes(path) > 100_000_000
    assert grown <= allowed < told["placed"] + 0.6 * stored_bytes(path)
    # So it was measured: all that was placed has been written to.
    assert grown > 0.8 * told["weights"]
