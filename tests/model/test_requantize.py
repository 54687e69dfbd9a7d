"""Files in another quantization: types, bytes, metadata, what the engine reads of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from tiny_models import make_tiny

from kbench.core import Unsupported
from kbench.model import REQUANTIZED, describe_gguf, open_gguf, requantize, synthesize


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requantize") / "tiny.gguf"
    synthesize(make_tiny("qwen3moe", "Q8_0"), path)
    return path


@pytest.mark.parametrize("label", REQUANTIZED)
def test_tensors_are_what_gguf_makes_of_them(source: Path, label: str, tmp_path: Path) -> None:
    gguf, path = open_gguf(source), tmp_path / f"x.{label}.gguf"
    seen: list[tuple[int, int]] = []
    requantize(gguf, label, path, progress=lambda done, whole: seen.append((done, whole)))
    made = open_gguf(path)
    assert describe_gguf(made).quant == label
    assert {k: v for k, v in made.metadata.items() if k != "general.file_type"} == {
        k: v for k, v in gguf.metadata.items() if k != "general.file_type"
    }
    assert seen[-1][0] == seen[-1][1] and not list(tmp_path.glob(".*"))
    for name, tensor in gguf.tensors.items():
        old, new = GGMLQuantizationType[tensor.info.quant], GGMLQuantizationType[made.tensors[name].info.quant]
        width = tensor.info.shape[0]
        floats = quants.dequantize(tensor.raw.reshape(tensor.info.n_elements // width, -1), old).astype(np.float32)
        assert made.tensors[name].raw.tobytes() == quants.quantize(floats, new).tobytes(), name
        # Norms and routers keep their precision, the head gets more bits than Q4_0.
        assert new.name in (("F32",) if tensor.info.kind in ("norms", "router") else (label, "Q8_0"))


def test_what_it_does_not_write(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="Q4_K_M"):
        requantize(open_gguf(source), "Q4_K_M", tmp_path / "x.gguf")
    assert not list(tmp_path.iterdir())
