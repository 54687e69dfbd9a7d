"""Types of every tensor as llama.cpp's quantizer chooses them, against sizes of published files."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import make_tiny

from kbench.core import Unsupported
from kbench.model import describe_gguf, embedded, open_gguf, tensor_classes, with_quant

# Class -> tensors, bytes, types. The total is the size of the published DeepSeek-V2-Chat Q4_K_M, 142.45 GB.
DEEPSEEK_V2_Q4_K_M = {
    "routed experts": (177, 134_686_310_400, {"Q4_K": 148, "Q6_K": 29}),
    "attention": (300, 5_036_359_680, {"Q4_K": 300}),
    "shared experts": (177, 1_683_578_880, {"Q4_K": 148, "Q6_K": 29}),
    "lm_head": (1, 430_080_000, {"Q6_K": 1}),
    "embedding": (1, 294_912_000, {"Q4_K": 1}),
    "router": (59, 193_331_200, {"F32": 59}),
    "dense FFN": (3, 122_388_480, {"Q4_K": 2, "Q6_K": 1}),
    "norms": (241, 2_969_600, {"F32": 241}),
}


def test_deepseek_v2_class_by_class() -> None:
    m = embedded("deepseek-v2-chat")
    assert len(m.tensors) == 959
    assert m.n_bytes == 142_449_930_240
    assert m.n_params == 235_741_434_880
    found = {row.kind: (row.n_tensors, row.n_bytes, dict(row.types)) for row in tensor_classes(m.tensors)}
    assert found == DEEPSEEK_V2_Q4_K_M


def test_deepseek_v2_layer_by_layer() -> None:
    by_name = embedded("deepseek-v2-chat").tensors_by_name
    upgraded = [i for i in range(1, 60) if by_name[f"blk.{i}.ffn_down_exps.weight"].quant == "Q6_K"]
    assert upgraded == [*range(1, 7), *range(9, 52, 3), *range(52, 60)]
    assert by_name["blk.5.ffn_down_exps.weight"].n_bytes == 160 * 6_451_200
    assert by_name["blk.5.ffn_gate_exps.weight"].n_bytes == 160 * 4_423_680
    assert by_name["blk.7.ffn_down_shexp.weight"].quant == "Q4_K"


# Model, label, size, unit, and where it was published; "the same rules" are totals of an independent derivation.
HUB, KT = "listing on the hub", "KTransformers, doc/en/install.md"
V3_CARD, AIR_CARD = "card of bartowski/DeepSeek-V3-0324-GGUF", "card of ubergarm/GLM-4.5-Air-GGUF"
BENCH, LM_STUDIO = "llama-bench rows of ik_llama.cpp's archive", "lmstudio-bug-tracker issue 1266, the loader's log"
RULES = "the same rules, derived independently"
SIZES = [
    ("deepseek-v2-chat", "Q4_K_M", 142.45, "GB", HUB),
    ("deepseek-v2-chat", "Q4_K_M", 133, "GiB", KT),
    ("deepseek-v2-chat", "Q8_0", 250.619, "GB", RULES),
    ("deepseek-v2-chat", "Q6_K", 193.538, "GB", RULES),
    ("deepseek-v2-chat", "Q5_K_M", 167.220, "GB", RULES),
    ("deepseek-v2-chat", "Q4_K_S", 133.872, "GB", RULES),
    ("deepseek-v2-chat", "Q4_0", 132.908, "GB", RULES),
    ("deepseek-v2-chat", "IQ4_XS", 126.764, "GB", RULES),
    ("deepseek-v2-chat", "Q3_K_M", 112.661, "GB", RULES),
    ("deepseek-v2-chat", "Q2_K", 85.943, "GB", RULES),
    ("deepseek-v2-chat", "F16", 471.581, "GB", RULES),
    ("deepseek-v2-lite-chat", "Q4_K_M", 9.65, "GiB", BENCH),
    ("deepseek-v2-lite-chat", "F16", 29.26, "GiB", BENCH),
    ("deepseek-v2-lite-chat", "Q4_K_M", 10.360, "GB", RULES),
    ("deepseek-v2-lite-chat", "Q8_0", 16.699, "GB", RULES),
    ("deepseek-v2-lite-chat", "Q4_0", 8.901, "GB", RULES),
    ("deepseek-v3", "Q4_K_M", 377, "GiB", KT),
    ("deepseek-v3", "Q4_K_M", 404.43, "GB", V3_CARD),
    ("deepseek-v3", "Q4_1", 419.94, "GB", V3_CARD),
    ("deepseek-v3", "Q5_K_S", 461.81, "GB", V3_CARD),
    ("deepseek-v3", "Q5_K_M", 475.40, "GB", V3_CARD),
    ("deepseek-v3", "Q6_K", 550.80, "GB", V3_CARD),
    ("deepseek-v3", "Q8_0", 713.29, "GB", V3_CARD),
    ("qwen3-30b-a3b", "Q4_K_M", 18.56, "GB", HUB),
    ("mixtral-8x7b", "Q4_K_M", 28.45, "GB", HUB),
    ("glm-4.5-air", "BF16", 205.811, "GiB", AIR_CARD),
    ("glm-4.5-air", "Q8_0", 109.381, "GiB", AIR_CARD),
]


@pytest.mark.parametrize(("name", "label", "size", "unit", "source"), SIZES, ids=lambda value: str(value))
def test_published_file_sizes(name: str, label: str, size: float, unit: str, source: str) -> None:
    found = embedded(name, label).file_bytes / (1e9 if unit == "GB" else 2**30)
    # 0.1 %, and half of the last digit of a figure that has no decimals.
    assert found == pytest.approx(size, rel=1e-3, abs=0 if size % 1 else 0.5), source
    # A figure with decimals is met to its last one, but for some MB of metadata.
    assert not size % 1 or found == pytest.approx(size, abs=0.016), source


def test_rows_that_no_block_of_256_divides() -> None:
    """V2-Lite's experts have 1408 columns: they fall back to blocks of 32."""
    m = embedded("deepseek-v2-lite-chat")
    types = Counter(tensor.quant for tensor in m.tensors if tensor.name.endswith("ffn_down_exps.weight"))
    assert types == {"Q5_0": 14, "Q8_0": 12}


def test_a_real_file_has_the_types_of_the_rules(smollm2_path: Path) -> None:
    """Made by llama.cpp itself; its embedding is the head too, so it is Q6_K, and 576 columns make that Q8_0."""
    real = describe_gguf(open_gguf(smollm2_path))
    assert with_quant(dataclasses.replace(real, tensors=()), "q4_1").tensors == real.tensors


def test_values_of_attention_are_upgraded_in_dense_models() -> None:
    m = make_tiny(n_layers=16)
    upgraded = [i for i in range(16) if m.tensors_by_name[f"blk.{i}.attn_v.weight"].quant == "Q6_K"]
    assert upgraded == [0, 1, 4, 7, 10, 13, 14, 15]
    assert {m.tensors_by_name[f"blk.{i}.attn_k.weight"].quant for i in range(16)} == {"Q4_K"}


def test_an_unknown_label() -> None:
    with pytest.raises(Unsupported, match=r"'Q4_KM'.*accepted: .*did you mean Q4_K_M\?"):
        embedded("deepseek-v3", "q4_km")
