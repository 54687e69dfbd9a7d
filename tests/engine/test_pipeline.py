"""A model over two processes on loopback: exactly the logits of one, and only activations cross."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import make_tiny

from kbench.core import UserError
from kbench.engine import join_hosts, load_model
from kbench.model import describe_gguf, open_gguf, stored_bytes, synthesize

pytest.importorskip("torch")

_HOST = """
import json, sys
import numpy as np
from kbench.engine import join_hosts, load_model, parse_alias, serve_host
from kbench.rules import load_rules
model, rules, out = sys.argv[1:4]
if "tensors" in sys.argv:  # what NCCL carries, gloo does, which takes tensors of the CPU: all but NCCL itself
    from kbench.engine import pipeline
    pipeline.NCCL = "gloo"
    pipeline.carrier = lambda pair, *_: ("gloo", "") if any(end.kind == "cpu" for end in pair) else ("tensors", "")
group = join_hosts()
options = {"context": 64, "sequences": 2, "chunk": 8, "threads": 1, "kv": "f32", "alias": parse_alias(["cuda:0=cpu"])}
if group.host:
    serve_host(model, load_rules(rules), group, **options)
else:
    session = load_model(model, load_rules(rules), group=group, **options)
    found = [session.prefill([5, 17, 3, 99, 42, 7, 61, 8, 30, 12]), session.decode(4).copy(), session.decode(9).copy()]
    session.truncate(4)
    found += [session.decode(77).copy(), *session.logits([1, 2, 3])]
    other = session.new_sequence()
    found += [session.prefill([8, 9, 10], other), *session.decode_batch([3, 4], [other, 0]).copy()]
    session.truncate(2, other)
    found += [*session.decode_batch([5, 6], [0, other]).copy()]
    # Host 1 hears of the first two of these with the steps behind the fork.
    session.free_sequence(other)
    session.truncate(3)
    copied = session.fork()
    found += [session.decode(11).copy(), *session.decode_batch([12, 13], [0, copied])]
    np.save(out, np.array(found))
    session.traffic.clear()
    session.decode(5)
    told = {"traffic": session.traffic.plain(), "weights": session.weights.n_bytes}
    print(json.dumps(told | {"carriers": session.report.carriers}))
    group.close()
"""
_RULES = """kbench: 1
rules:
- match: {name: '^model\\.layers\\.[12]\\.mlp\\.experts$'}
  replace: {kwargs: {generate_device: host1/cpu}}
- match: {name: '^(model\\.layers\\.[12]|model\\.norm|lm_head)'}
  replace: {kwargs: {generate_device: 'host1/cuda:0'}}
"""
# There and back, from GPU to GPU.
_RULES_OF_GPUS = """kbench: 1
rules:
- match: {name: '^model\\.layers\\.1'}
  replace: {kwargs: {generate_device: 'host1/cuda:0'}}
- match: {name: '^(model\\.layers|model\\.norm)'}
  replace: {kwargs: {generate_device: 'cuda:0'}}
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_hosts(model: list[Path], rules: Path, out: Path, *words: str) -> list[subprocess.CompletedProcess[str]]:
    port = free_port()
    started = []
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", _HOST, str(model[rank]), str(rules), str(out), *words]
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    finished = []
    for process in started:
        try:
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
        finished.append(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))
    return finished


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "deepseek.gguf"
    synthesize(make_tiny("deepseek2", "Q8_0"), path, seed=4)
    return path


@pytest.fixture(scope="module")
def right(model: Path) -> np.ndarray:
    """The logits of one process, of what ``_HOST`` does."""
    one = load_model(model, context=64, chunk=8, threads=1, kv="f32", sequences=2)
    found = [one.prefill([5, 17, 3, 99, 42, 7, 61, 8, 30, 12]), one.decode(4).copy(), one.decode(9).copy()]
    one.truncate(4)
    found += [one.decode(77).copy(), *one.logits([1, 2, 3])]
    second = one.new_sequence()
    found += [one.prefill([8, 9, 10], second), *one.decode_batch([3, 4], [second, 0]).copy()]
    one.truncate(2, second)
    found += [*one.decode_batch([5, 6], [0, second]).copy()]
    one.free_sequence(second)
    one.truncate(3)
    copied = one.fork()
    found += [one.decode(11).copy(), *one.decode_batch([12, 13], [0, copied])]
    return np.array(found)


def moved(told: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    return [(entry["src"], entry["dst"], entry["calls"], entry["bytes"]) for entry in told["traffic"]]


def test_two_hosts_give_the_logits_of_one(model: Path, right: np.ndarray, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.yaml", tmp_path / "logits.npy"
    rules.write_text(_RULES)
    lead, other = run_hosts([model, model], rules, out)
    assert (lead.returncode, other.returncode) == (0, 0), lead.stderr + other.stderr
    np.testing.assert_array_equal(np.load(out), right)
    told = json.loads(lead.stdout)
    # The hidden state goes over, the logits come back; float32.
    d, vocab = (lambda m: (m.d, m.vocab))(describe_gguf(open_gguf(model)))
    assert moved(told) == [("cpu", "host1/cuda:0", 1, 4 * d), ("host1/cuda:0", "cpu", 1, 4 * vocab)]
    assert 0 < told["weights"] < stored_bytes(model) / 2
    assert told["carriers"] == {
        "cpu -> host1/cuda:0": ["gloo", "on cpu they lie in host memory"],
        "host1/cuda:0 -> cpu": ["gloo", "on host1/cuda:0 they lie in host memory"],
    }


def test_what_goes_from_gpu_to_gpu_goes_as_tensors(model: Path, right: np.ndarray, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.yaml", tmp_path / "logits.npy"
    rules.write_text(_RULES_OF_GPUS)
    lead, other = run_hosts([model, model], rules, out, "tensors")
    assert (lead.returncode, other.returncode) == (0, 0), lead.stderr + other.stderr
    np.testing.assert_array_equal(np.load(out), right)
    told = json.loads(lead.stdout)
    assert told["carriers"] == {"cuda:0 -> host1/cuda:0": ["tensors", ""], "host1/cuda:0 -> cuda:0": ["tensors", ""]}
    d = describe_gguf(open_gguf(model)).d
    between = [entry for entry in moved(told) if "host1" in entry[0] + entry[1]]
    assert between == [("cuda:0", "host1/cuda:0", 1, 4 * d), ("host1/cuda:0", "cuda:0", 1, 4 * d)]


def test_hosts_with_different_models_are_told(model: Path, tmp_path: Path) -> None:
    other_model = tmp_path / "other.gguf"
    synthesize(make_tiny("deepseek2", "Q8_0", n_layers=4), other_model, seed=4)
    rules = tmp_path / "rules.yaml"
    rules.write_text(_RULES)
    lead, other = run_hosts([model, other_model], rules, tmp_path / "none.npy")
    assert lead.returncode != 0 and other.returncode != 0
    assert "another model than host 0" in other.stderr and "host 1 would run" in lead.stderr


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT"),
    ],
)
def test_launchers_that_make_no_sense(variables: dict[str, str], where: str) -> None:
    with pytest.raises(UserError) as caught:
        join_hosts(variables)
    assert caught.value.where == where and caught.value.accepted


def test_alone_there_is_no_group() -> None:
    assert join_hosts({}) is None and join_hosts({"RANK": "0", "WORLD_SIZE": "1"}) is None
