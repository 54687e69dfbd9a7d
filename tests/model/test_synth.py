"""Synthetic files: read back by the gguf package, sane weights, and what can go wrong on a disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import Unsupported, UserError
from kbench.model import describe_gguf, embedded, first_layers, open_gguf, synth, synthesize

QUANTS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K",
    "IQ4_XS", "IQ4_NL",
)  # fmt: skip


@pytest.mark.parametrize("quant", QUANTS)
def test_weights_are_centred_and_of_spread_one_over_root_k(quant: str, tmp_path: Path) -> None:
    m = make_tiny(quant=quant, n_layers=1)
    synthesize(m, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert [tensor.name for tensor in reader.tensors] == [tensor.name for tensor in m.tensors]
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert np.isfinite(weights).all()
        if weights.ndim == 1:
            assert 0.5 < weights.min() < weights.max() < 1.5
            continue
        root_k = int(tensor.shape[0]) ** 0.5
        # The scale is known to 1 %, d is spread over +-25 %: 32768 weights and more give the spread to 2 %. Means:
        # Q3_K's scales and integers both average -1/2, which is 0.25 / 42 of the spread; else sampling noise.
        assert weights.std() * root_k == pytest.approx(1, abs=0.05), tensor.name
        assert abs(weights.mean()) * root_k < 0.04, tensor.name


@pytest.mark.parametrize(("quant", "group"), [("Q4_K", 32), ("Q5_K", 32), ("Q2_K", 16)])
def test_every_group_of_a_block_is_centred(quant: str, group: int) -> None:
    """Scales and minima agree group by group: no group lies on one side of zero, as none does in a real model."""
    from kbench.model.random_blocks import random_bytes

    (blocks,) = random_bytes(quant, 256 * 64, 1.0, np.random.default_rng(0))
    weights = gguf.quants.dequantize(blocks.reshape(64, -1), gguf.GGMLQuantizationType[quant]).reshape(-1, group)
    # Uniform integers: 5 standard errors of a group's mean, each group by its own widest weight.
    largest = np.abs(weights).max(axis=1)
    assert (np.abs(weights.mean(axis=1)) <= 5 * largest / (3 * group) ** 0.5).all()
    assert (weights.min(axis=1) <= 0).all()


@pytest.mark.parametrize("std", [0.0186, 1 / 16, 0.9])
def test_mxfp4_of_any_spread(std: float) -> None:
    """Its scales are powers of two, the wanted spread is not."""
    from kbench.model.random_blocks import random_bytes

    (blocks,) = random_bytes("MXFP4", 1 << 18, std, np.random.default_rng(0))
    weights = gguf.quants.dequantize(blocks.reshape(-1, 17), gguf.GGMLQuantizationType.MXFP4)
    # A sample's spread is off by 1 / sqrt(2 n) = 0.15 %, of blocks of two scales a little more.
    assert weights.std() == pytest.approx(std, rel=0.01)
    assert abs(weights.mean()) < 0.01 * std


def test_chunks_are_the_whole_tensor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With chunks of 4 KiB every tensor is written in pieces that fit together."""
    from kbench.model import random_blocks

    monkeypatch.setattr(random_blocks, "CHUNK_BYTES", 4096)
    m = make_tiny("deepseek2", n_layers=2)
    seen: list[tuple[int, int]] = []
    synthesize(m, tmp_path / "m.gguf", progress=lambda done, whole: seen.append((done, whole)))
    assert seen[-1] == (m.n_bytes, m.n_bytes)
    assert len(seen) > 100
    assert describe_gguf(open_gguf(tmp_path / "m.gguf")).n_bytes == m.n_bytes


def test_the_seed_decides(tmp_path: Path) -> None:
    def digest(seed: int) -> str:
        synthesize(make_tiny(n_layers=1), tmp_path / "m.gguf", seed=seed, force=True)
        return hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest()

    assert digest(1) == digest(1) != digest(2)


def test_the_tokenizer_is_whole(tmp_path: Path) -> None:
    m = make_tiny(n_layers=1, vocab=1000)
    synthesize(m, tmp_path / "m.gguf")
    metadata = open_gguf(tmp_path / "m.gguf").metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == len(metadata["tokenizer.ggml.token_type"]) == 1000
    for merge in metadata["tokenizer.ggml.merges"]:
        assert {*merge.split(" "), merge.replace(" ", "")} <= set(tokens)
    assert tokens[metadata["tokenizer.ggml.eos_token_id"]] == "<|end|>"
    transformers = pytest.importorskip("transformers")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert transformers
    assert set(bytes_to_unicode().values()) <= set(tokens)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama_cpp_loads_and_runs_it(architecture: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    synthesize(make_tiny(architecture), tmp_path / "m.gguf")
    model = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=32, n_threads=1, logits_all=True, verbose=False)
    assert model.tokenize(b"the hen\n", add_bos=False)
    model.eval([1, 2, 3, 4])
    logits = np.array(model.scores[:4])
    model.close()
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10  # activations neither died nor exploded


def test_first_layers() -> None:
    short = first_layers(embedded("deepseek-v2-lite-chat"), 2)
    assert short.n_layers == 2
    assert short.has_experts(1)
    assert not short.has_experts(0)
    assert {t.name.split(".")[1] for t in short.tensors if t.name.startswith("blk.")} == {"0", "1"}
    assert first_layers(short, 2) is short
    for n in (0, 3):
        with pytest.raises(UserError, match="accepted: 1 to 2"):
            first_layers(short, n)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("precious")
    with pytest.raises(UserError, match=r"this file exists.*--force"):
        synthesize(make_tiny(n_layers=1), path)
    assert path.read_text() == "precious"
    synthesize(make_tiny(n_layers=1), path, force=True)
    assert open_gguf(path).architecture == "llama"


def test_a_folder_is_no_file_to_replace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a regular file"):  # --force would not help, so it is not offered
        synthesize(make_tiny(n_layers=1), tmp_path, force=True)


def test_a_missing_folder_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such folder"):
        synthesize(make_tiny(n_layers=1), tmp_path / "no" / "m.gguf")
    full = shutil._ntuple_diskusage(10**9, 10**9, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr(synth.shutil, "disk_usage", lambda path: full)
    with pytest.raises(UserError, match=r"needs .* the disk has 1000 B|0.977 KiB free"):
        synthesize(make_tiny(n_layers=1), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_nothing_is_left_of_a_failed_write(
    problem: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tensor: Any, seed: int) -> Any:
        yield np.zeros(8, np.uint8)
        raise problem

    monkeypatch.setattr(synth, "tensor_chunks", broken)
    with pytest.raises((UserError, KeyboardInterrupt)) as error:
        synthesize(make_tiny(n_layers=1), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []
    if isinstance(problem, OSError):
        assert "No space left" in str(error.value)


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    others = [".m.gguf.1.partial", ".n.gguf.999999.partial", ".m.gguf.x.partial"]  # process 1 lives
    for name in (*others, f".m.gguf.{dead.pid}.partial"):
        (tmp_path / name).write_text("")
    synthesize(make_tiny(n_layers=1), tmp_path / "m.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {*others, "m.gguf"}


def test_a_type_without_recipe(tmp_path: Path) -> None:
    from kbench.model.random_blocks import random_bytes

    with pytest.raises(Unsupported, match="no random weights of type IQ1_S"):
        next(random_bytes("IQ1_S", 256, 1.0, np.random.default_rng(0)))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of 160 MB within 100 MB of address space beyond what the imports take."""
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[2]);"
        "from tiny_models import make_tiny; from kbench.model import synthesize;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000,) * 2);"
        "synthesize(make_tiny(d=2048, head_dim=512, ffn=8192, n_layers=2, vocab=4096, quant='Q8_0'), sys.argv[1])"
    )
    path = tmp_path / "m.gguf"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert path.stat().st_size > 150_000_000
