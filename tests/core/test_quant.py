from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from kbench.core import QUANTS, REMOVED_QUANT_IDS, TensorInfo, Unsupported, quant


@pytest.mark.parametrize("name", QUANTS)
def test_sizes_are_those_of_the_gguf_package(name: str) -> None:
    if name not in GGMLQuantizationType.__members__:
        assert name == "Q2_0"  # newer than some releases of the package
        return
    known = GGMLQuantizationType[name]
    block_elements, block_bytes = GGML_QUANT_SIZES[known]
    if name == "Q8_1":
        block_bytes = 36  # the package counts 4-byte scales; the C block has two 2-byte ones
    traits = QUANTS[name]
    assert (traits.ggml_id, traits.block_elements, traits.block_bytes) == (known.value, block_elements, block_bytes)


def test_the_table_misses_no_type_of_the_package() -> None:
    assert {t.name for t in GGMLQuantizationType} <= set(QUANTS)
    assert not set(REMOVED_QUANT_IDS) & {t.ggml_id for t in QUANTS.values()}


def test_row_bytes() -> None:
    assert quant("Q4_K").row_bytes(512) == 288
    assert quant("Q6_K").bits_per_weight == pytest.approx(6.5625)
    with pytest.raises(Unsupported, match="no multiple"):
        quant("Q4_K").row_bytes(1408)
    with pytest.raises(Unsupported, match="did you mean Q4_K"):
        quant("Q4_KM")


def test_tensor_bytes_count_all_experts() -> None:
    info = TensorInfo("blk.1.ffn_gate_exps.weight", (5120, 1536, 160), "Q4_K", "routed experts")
    assert info.n_bytes == 160 * 4_423_680
