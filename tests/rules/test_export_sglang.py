"""Exports to sglang-kt: as many experts on the GPUs as the rules put there, by the rule that comes nearest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbench.core import CPU, Device, Module, Placement
from kbench.model import build_tree, embedded
from kbench.rules import Export, Serving, export

GPU = Device("cuda", 0)
MODEL = "deepseek-v2-lite-chat"  # 26 layers of 64 experts behind a dense one


def exported(on_gpu: Callable[[int], bool], *gpus: Device, experts: Placement | None = None, **more: int) -> Export:
    """All on the first of ``gpus`` but the experts of layers that ``on_gpu`` denies; the second has the last layers."""
    tree: Module = build_tree(embedded(MODEL))
    away = experts or Placement(threads=6)
    placed = {}
    for module in tree.walk():
        layer = int(module.name.split(".")[2]) if module.name.startswith("model.layers.") else None
        gpu = gpus[-1] if layer is None or layer > 13 else gpus[0]
        placed[module.name] = Placement(gpu, prefill_device=gpu)
        if module.name.endswith(".experts") and layer is not None and not on_gpu(layer):
            placed[module.name] = away
    return export(placed, tree, "sglang-kt", Serving("/models/lite/q4.gguf", "/models/hf", **more))


def on_gpus(found: Export) -> tuple[int, str]:
    """How many experts it would put there, as it computes that, and by which rule."""
    values = dict(zip(found.arguments[::2], found.arguments[1::2], strict=True))
    n_layers, n_experts = 26, 64
    if "--kt-gpu-experts-ratio" in values:
        total = int(n_layers * n_experts * float(values["--kt-gpu-experts-ratio"]))
    else:
        total = int(values["--kt-num-gpu-experts"]) * n_layers
    return total, values["--kt-expert-placement-strategy"]


@pytest.mark.parametrize(
    ("on_gpu", "layers", "strategy"),
    [
        (lambda layer: False, 0, "uniform"),
        (lambda layer: True, 26, "uniform"),
        (lambda layer: layer <= 13, 13, "front-loading"),
        (lambda layer: layer <= 7, 7, "front-loading"),
        (lambda layer: layer > 19, 7, "uniform"),
        (lambda layer: layer % 2 == 0, 13, "uniform"),
    ],
)
def test_as_many_experts_as_in_the_rules(on_gpu: Callable[[int], bool], layers: int, strategy: str) -> None:
    found = exported(on_gpu, GPU)
    assert on_gpus(found) == (layers * 64, strategy)
    differs = strategy == "uniform" and 0 < layers < 26
    assert differs == any("here each layer has about" in note for note in found.notes)


def test_the_whole_command() -> None:
    found = exported(lambda layer: False, GPU, context=8192, sequences=2, chunk=1024)
    assert found.program == ("python", "-m", "sglang.launch_server")
    assert list(found.arguments) == [
        "--model-path", "/models/hf", "--kt-weight-path", "/models/lite", "--kt-method", "LLAMAFILE",
        "--kt-cpuinfer", "6", "--kt-threadpool-count", "1", "--kt-num-gpu-experts", "0",
        "--kt-expert-placement-strategy", "uniform", "--tensor-parallel-size", "1", "--base-gpu-id", "0",
        "--context-length", "8192", "--max-total-tokens", "16384", "--max-running-requests", "2",
        "--chunked-prefill-size", "1024",
    ]  # fmt: skip


def test_gpus_that_are_not_in_a_row_are_told() -> None:
    apart = exported(lambda layer: False, Device("cuda", 0), Device("cuda", 2))
    assert "CUDA_VISIBLE_DEVICES=0,2 and --base-gpu-id 0" in "\n".join(apart.notes)
    row = exported(lambda layer: False, Device("cuda", 1), Device("cuda", 2))
    assert "CUDA_VISIBLE_DEVICES" not in "\n".join(row.notes)


def test_what_it_cannot_be_told() -> None:
    two = exported(lambda layer: False, Device("cuda", 1), Device("cuda", 2), experts=Placement(CPU, "cpu.avx2"))
    told = "\n".join(two.notes)
    assert ("--tensor-parallel-size", "2") in list(zip(two.arguments[::2], two.arguments[1::2], strict=True))
    assert ("--base-gpu-id", "1") in list(zip(two.arguments[::2], two.arguments[1::2], strict=True))
    for words in (
        "takes experts of widths that 256 divides, not of 1408",
        "shared out over 2 GPUs",
        "--kt-cpuinfer, the threads, is not in the rules",
        "kernels of its own: cpu.avx2",
    ):
        assert words in told, words
