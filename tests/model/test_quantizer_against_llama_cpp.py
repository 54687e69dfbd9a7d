"""llama.cpp itself quantizes small models; every tensor gets the type that the rules foretell."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from tiny_models import make_tiny

from kbench.model import Moe, open_gguf, requantize, synthesize, with_quant

llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")

# Sixteen layers: an eighth of them is two, a sixteenth one, so that no rule about the first or last ones is idle.
N_LAYERS = 16
# Not eight, which has rules of its own.
NINE = Moe(9, 2, 256, 0, 0, "softmax", 1, 1, True, 1.0)
# Quantizing takes time.
SMALL = {"n_layers": N_LAYERS, "ffn": 256, "vocab": 260}


def quantize(source: Path, label: str, target: Path) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{label}")
    params.nthread, params.allow_requantize = 2, True
    done = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    assert done == 0


@pytest.mark.parametrize(
    ("architecture", "labels"),
    [
        ("llama", ("Q2_K", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M")),
        ("qwen3moe", ("Q3_K_L",)),
        ("glm4moe", ("Q3_K_M",)),
    ],
)
def test_types_are_llama_cpps(architecture: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    changes = {"moe": NINE} if architecture == "qwen3moe" else {}
    source, target = tmp_path / "f32.gguf", tmp_path / "quantized.gguf"
    model = synthesize(make_tiny(architecture, "F32", **SMALL, **changes), source)
    for label in labels:
        quantize(source, label, target)
        found = {name: tensor.info.quant for name, tensor in open_gguf(target).tensors.items()}
        assert found == {tensor.name: tensor.quant for tensor in with_quant(model, label).tensors}, label


@pytest.mark.parametrize("label", ["F16", "Q8_0", "Q4_0"])
def test_requantized_files_have_llama_cpps_bytes(label: str, tmp_path: Path) -> None:
    """From a quantized file; of a head in Q6_K, which is not written here, nothing is said."""
    source, ours, theirs = (tmp_path / name for name in ("source.gguf", "ours.gguf", "theirs.gguf"))
    synthesize(make_tiny("llama", "Q4_1", vocab=260), source)
    requantize(open_gguf(source), label, ours)
    quantize(source, label, theirs)
    made = open_gguf(ours).tensors
    for name, tensor in open_gguf(theirs).tensors.items():
        if tensor.info.quant != "Q6_K":
            assert made[name].raw.tobytes() == tensor.raw.tobytes(), name
