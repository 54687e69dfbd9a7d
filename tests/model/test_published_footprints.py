"""What others published about memory, out of our tensor tables."""

from __future__ import annotations

from collections import Counter

import pytest

from kbench.core import TensorInfo, quant
from kbench.model import embedded, footprint, kv_bytes_per_token, with_quant

V2, V3 = "deepseek-v2-chat", "deepseek-v3"

# 4-bit weights with a 16-bit scale for every 128: how KTransformers' Marlin keeps linear layers on the GPU.
MARLIN_BITS = 4 + 16 / 128


def on_gpu(tensor: TensorInfo) -> bool:
    """KTransformers' rules for one GPU: all but the routed experts and the embedding."""
    return tensor.kind not in ("routed experts", "embedding")


def gigabytes(bf16: tuple[str, ...]) -> float:
    """Of DeepSeek-V2 on the GPU: norms and routers in F32, what has a word of ``bf16`` in its name so, else Marlin."""

    def bits(tensor: TensorInfo) -> float:
        if tensor.kind in ("norms", "router"):
            return 32
        return 16 if any(word in tensor.name for word in bf16) else MARLIN_BITS

    return sum(t.n_elements * bits(t) / 8 for t in embedded(V2).tensors if on_gpu(t)) / 1e9


def test_deepseek_v2_on_one_gpu() -> None:
    """The tutorial's 20.7 GB with attention left in BF16 are 19.9 of weights, the cache of 4096 tokens and a runtime;
    its later 11 GB with 4-bit attention (kv_b stays, for it is absorbed) are 8.1 of weights."""
    assert gigabytes(("attn_",)) == pytest.approx(19.9, abs=0.05)
    with_cache = gigabytes(("attn_",)) + 4096 * kv_bytes_per_token(embedded(V2), "bf16") / 1e9
    assert with_cache + 0.5 == pytest.approx(20.7, abs=0.05)
    assert gigabytes(("attn_kv_b",)) == pytest.approx(8.1, abs=0.05)


def test_deepseek_v2_experts_in_main_memory() -> None:
    experts = sum(t.n_bytes for t in embedded(V2).tensors if t.kind == "routed experts")
    assert experts / 1e9 == pytest.approx(135, abs=0.5)
    # "136 GB of DRAM": with the embedding.
    assert (experts + embedded(V2).tensors_by_name["token_embd.weight"].n_bytes) / 1e9 < 136


def test_deepseek_v2_tensor_by_tensor() -> None:
    """Q4_K_M in 4.834 bits a weight; a token reads 12.519 GB, of which its routed experts are 5.051."""
    model = embedded(V2)
    assert 8 * model.n_bytes / model.n_params == pytest.approx(4.834, abs=5e-4)
    assert model.n_bytes / 2**30 == pytest.approx(132.667, abs=5e-4)
    routed = sum(t.n_bytes for t in model.tensors if t.kind == "routed experts") * 6 / 160
    assert routed / 1e9 == pytest.approx(5.051, abs=5e-4)
    assert (footprint(model).read_bytes_per_token - routed) / 1e9 == pytest.approx(7.469, abs=1e-3)
    # A layer's routed experts, attention and shared experts; of the two kinds, 30 and 29 layers.
    by_layer = Counter(
        tuple(sum(t.n_bytes for t in model.tensors if t.name.startswith(f"blk.{i}.") and t.kind == kind)
              for kind in ("routed experts", "attention", "shared experts"))
        for i in range(1, 60)
    )  # fmt: skip
    assert by_layer == {
        (2_123_366_400, 83_939_328, 26_542_080): 30,
        (2_447_769_600, 83_939_328, 30_597_120): 29,
    }


def test_deepseek_v3_cache_and_expert_layer() -> None:
    model = embedded(V3)
    assert kv_bytes_per_token(model, "bf16") == 70_272
    layer = [t for t in model.tensors if t.name.startswith("blk.30.") and t.kind == "routed experts"]
    assert sum(t.n_elements for t in layer) * quant("MXFP4").bits_per_weight / 8 / 1e9 == pytest.approx(5.99, abs=5e-3)


# Files with kv_b in two, whose rows of 128 fall back to Q5_0: totals of an independent derivation of the same rules.
@pytest.mark.parametrize(
    ("name", "label", "size"),
    [
        (V2, "Q4_K_M", 142.513),
        (V2, "Q5_K_M", 167.251),
        (V2, "Q3_K_M", 112.728),
        (V2, "Q2_K", 86.061),
        (V2, "Q4_0", 132.908),
        ("deepseek-v2-lite-chat", "Q4_K_M", 10.364),
    ],
)
def test_files_with_kv_b_in_two(name: str, label: str, size: float) -> None:
    assert with_quant(embedded(name), label, split_kv_b=True).n_bytes / 1e9 == pytest.approx(size, abs=5e-4)


# GB of a bf16 cache at 32768 tokens.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("deepseek-v2-lite-chat", 1.02),
        (V2, 2.26),
        (V3, 2.30),
        ("kimi-k2", 2.30),
        ("qwen3-30b-a3b", 3.22),
        ("qwen3-235b-a22b", 6.31),
        ("glm-4.5", 12.35),
        ("glm-4.5-air", 6.17),
        ("qwen3-next", 0.81),
    ],
)
def test_caches(name: str, size: float) -> None:
    assert 32768 * kv_bytes_per_token(embedded(name), "bf16") / 1e9 == pytest.approx(size, abs=5e-3)
