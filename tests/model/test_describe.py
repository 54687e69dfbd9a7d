"""Descriptors from GGUF metadata: what is read, and what contradicts itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_models import ARCHITECTURES, make_tiny

from kbench.core import CorruptFile, TensorInfo, Unsupported, UserError
from kbench.model import GgufFile, GgufTensor, ModelDescriptor, build_tree, describe_gguf, open_gguf, synthesize
from kbench.model.checked_tensors import MOST_FAULTS


def test_smollm2(smollm2_path: Path) -> None:
    m = describe_gguf(open_gguf(smollm2_path))
    assert (m.architecture, m.quant, m.n_layers, m.d, m.heads, m.kv_heads) == ("llama", "Q4_1", 30, 576, 9, 3)
    assert (m.head_dim, m.ffn, m.vocab, m.context_length, m.tied) == (64, 1536, 49152, 8192, True)
    assert m.rms_eps == pytest.approx(1e-5)
    assert m.rope["mode"] == "norm"
    assert m.rope["freq_base"] == 100000.0
    assert len(m.tensors) == 272
    assert m.n_params == 134_515_008  # as its card says
    assert m.n_bytes == open_gguf(smollm2_path).tensor_bytes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_written_model_is_described_as_it_was(architecture: str, tmp_path: Path) -> None:
    wanted = make_tiny(architecture)
    synthesize(wanted, tmp_path / "m.gguf")
    found = describe_gguf(open_gguf(tmp_path / "m.gguf"))
    for field in dataclasses.fields(ModelDescriptor):
        if field.name != "rope":
            assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert {k: pytest.approx(v) if isinstance(v, float) else v for k, v in wanted.rope.items()} == dict(found.rope)


def change(
    path: Path, metadata: dict[str, Any] | None = None, shapes: dict[str, tuple[int, ...] | None] | None = None
) -> GgufFile:
    """The file in ``path`` with other metadata (None removes a key) and other shapes (None removes the tensor)."""
    gguf = open_gguf(path)
    keys = dict(gguf.metadata) | (metadata or {})
    tensors = dict(gguf.tensors)
    for name, shape in (shapes or {}).items():
        tensors.pop(name, None)
        if shape is not None:
            raw = gguf.tensors["output_norm.weight"].raw
            tensors[name] = GgufTensor(TensorInfo(name, shape, "F32", "other"), raw)
    return dataclasses.replace(
        gguf, metadata={key: value for key, value in keys.items() if value is not None}, tensors=tensors
    )


@pytest.mark.parametrize(
    ("metadata", "where", "says"),
    [
        ({"llama.block_count": None}, "llama.block_count", "missing"),
        ({"llama.block_count": 2}, "llama.block_count", "blocks 0 to 0"),
        ({"llama.block_count": 0}, "llama.block_count", "found 0"),
        ({"llama.block_count": "1"}, "llama.block_count", "found '1'"),
        ({"llama.block_count": True}, "llama.block_count", "found True"),
        ({"llama.block_count": 2**40}, "llama.block_count", "found 1099511627776"),
        ({"llama.embedding_length": None}, "llama.embedding_length", "missing"),
        ({"llama.embedding_length": 512}, "token_embd.weight", "[256, 320]"),
        ({"llama.embedding_length": -256}, "llama.embedding_length", "found -256"),
        ({"llama.attention.head_count": 8}, "blk.0.attn_q.weight", "[256, 512]"),
        ({"llama.attention.head_count": [4, 8]}, "llama.attention.head_count", "layer to layer"),
        ({"llama.attention.head_count_kv": 3}, "llama.attention.head_count_kv", "a divisor of the 4 heads"),
        ({"llama.attention.head_count_kv": 4}, "blk.0.attn_k.weight", "[256, 256]"),
        ({"llama.attention.key_length": 32}, "llama.attention.value_length", "differs"),
        ({"llama.attention.head_count": 6, "llama.attention.key_length": None}, "head_count", "do not divide"),
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count", "a part of the head"),
        ({"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base", "found nan"),
        ({"llama.rope.freq_base": 0.0}, "llama.rope.freq_base", "found 0.0"),
        ({"llama.rope.freq_base": 1.0}, "llama.rope.freq_base", "above 1"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type", "longrope"),
        ({"llama.rope.scaling.type": 3}, "llama.rope.scaling.type", "found 3"),
        ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "rms_epsilon", "found inf"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "rms_epsilon", "missing"),
        ({"llama.vocab_size": 321}, "llama.vocab_size", "320 tokenizer.ggml.tokens"),
        ({"llama.vocab_size": 321, "tokenizer.ggml.tokens": None}, "token_embd.weight", "[256, 321]"),
        ({"llama.feed_forward_length": 500}, "blk.0.ffn_gate.weight", "[256, 512]"),
        ({"llama.context_length": None}, "llama.context_length", "missing"),
        ({"llama.expert_count": 8}, "llama.expert_used_count", "missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "llama.expert_used_count", "found 9"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "expert_feed_forward_length", "missing"),
    ],
)
def test_metadata_that_contradicts(metadata: dict[str, Any], where: str, says: str, tiny_gguf: Path) -> None:
    with pytest.raises((CorruptFile, Unsupported)) as error:
        describe_gguf(change(tiny_gguf, metadata))
    assert str(tiny_gguf) in error.value.where
    assert where in error.value.where
    assert says in error.value.message


@pytest.mark.parametrize(
    ("shapes", "where", "says"),
    [
        ({"blk.0.ffn_up.weight": None}, "blk.0.ffn_up.weight", "missing"),
        ({"output_norm.weight": (257,)}, "output_norm.weight", "[257]"),
        ({"token_embd.weight": None}, "token_embd.weight", "no matrix"),
        ({"blk.0.attn_norm.weight": (1, 256)}, "blk.0.attn_norm.weight", "[1, 256]"),
        ({"blk.1.attn_norm.weight": (256,)}, "llama.block_count", "blocks 0 to 1"),
        ({"blk.0.attn_output.bias": (256,)}, "blk.0.attn_output.bias", "does not know"),
        ({"blk.0.attn_q.bias": (256,)}, "blk.0.attn_k.bias", "missing"),
        ({"rope_freqs.weight": (16,)}, "rope_freqs.weight", "[32]"),
    ],
)
def test_tensors_that_contradict(
    shapes: dict[str, tuple[int, ...] | None], where: str, says: str, tiny_gguf: Path
) -> None:
    with pytest.raises((CorruptFile, Unsupported)) as error:
        describe_gguf(change(tiny_gguf, shapes=shapes))
    assert where in error.value.where
    assert says in error.value.message


def test_experts_where_an_architecture_has_none(tmp_path: Path) -> None:
    synthesize(make_tiny("qwen2", n_layers=1), tmp_path / "m.gguf")
    with pytest.raises(Unsupported, match=r"mixture-of-experts.*'qwen2'.*accepted: llama, qwen2moe"):
        describe_gguf(change(tmp_path / "m.gguf", {"qwen2.expert_count": 8}))
    synthesize(make_tiny("qwen2moe", n_layers=1), tmp_path / "e.gguf")
    with pytest.raises(CorruptFile, match="expert_count"):
        describe_gguf(change(tmp_path / "e.gguf", {"qwen2moe.expert_count": None}))


def test_draft_layers_are_left_out(tmp_path: Path) -> None:
    synthesize(make_tiny("glm4moe"), tmp_path / "m.gguf")
    nextn = {"blk.3.nextn.eh_proj.weight": (512, 256), "blk.3.attn_norm.weight": (256,)}
    keys = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    m = describe_gguf(change(tmp_path / "m.gguf", keys, nextn))
    assert (m.n_layers, m.tensors) == (3, describe_gguf(open_gguf(tmp_path / "m.gguf")).tensors)
    with pytest.raises(CorruptFile, match="nextn_predict_layers"):
        describe_gguf(change(tmp_path / "m.gguf", keys | {"glm4moe.nextn_predict_layers": 4}, nextn))
    with pytest.raises(CorruptFile, match="missing"):
        describe_gguf(change(tmp_path / "m.gguf", keys | {"glm4moe.block_count": 5}, nextn))


def test_heads_that_rotate_in_part(tmp_path: Path) -> None:
    synthesize(make_tiny("glm4moe"), tmp_path / "m.gguf")
    assert describe_gguf(change(tmp_path / "m.gguf", {"glm4moe.rope.dimension_count": 64})).rotary == 0
    for wrong in (66, 31):
        with pytest.raises(CorruptFile, match=r"rope\.dimension_count"):
            describe_gguf(change(tmp_path / "m.gguf", {"glm4moe.rope.dimension_count": wrong}))


def test_widths_of_experts_that_only_the_tensors_tell(tmp_path: Path) -> None:
    synthesize(make_tiny("qwen2moe"), tmp_path / "m.gguf")
    widths = ("expert_feed_forward_length", "expert_shared_feed_forward_length")
    moe = describe_gguf(change(tmp_path / "m.gguf", {f"qwen2moe.{key}": None for key in widths})).moe
    assert moe is not None
    assert (moe.n, moe.shared_width) == (256, 768)


def test_an_unknown_architecture_lists_the_known(tiny_gguf: Path) -> None:
    with pytest.raises(Unsupported, match=r"'lama' is not supported.*llama, qwen2, qwen3.*did you mean llama"):
        describe_gguf(dataclasses.replace(open_gguf(tiny_gguf), architecture="lama"))


def test_variants_of_llama(tiny_gguf: Path) -> None:
    m = describe_gguf(change(tiny_gguf, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}))
    assert (m.rope["scaling"], m.rope["factor"]) == ("linear", 4.0)
    m = describe_gguf(change(tiny_gguf, {"llama.rope.scale_linear": 2.0}))
    assert (m.rope["scaling"], m.rope["factor"]) == ("linear", 2.0)
    m = describe_gguf(change(tiny_gguf, shapes={"rope_freqs.weight": (32,)}))
    assert any(tensor.name == "rope_freqs.weight" for tensor in m.tensors)
    m = describe_gguf(change(tiny_gguf, shapes={"output.weight": None}))
    assert m.tied
    biases = {"blk.0.attn_q.bias": (256,), "blk.0.attn_k.bias": (128,), "blk.0.attn_v.bias": (128,)}
    assert describe_gguf(change(tiny_gguf, shapes=biases)).attention_bias
    m = describe_gguf(change(tiny_gguf, {"llama.attention.head_count_kv": [2]}))
    assert m.kv_heads == 2


def test_a_name_cannot_command_a_terminal(tiny_gguf: Path) -> None:
    assert describe_gguf(change(tiny_gguf, {"general.name": "a\x1b[2Jb\nc"})).name == "a[2Jbc"


def test_quant_is_guessed_from_the_bytes_where_the_file_does_not_say(tiny_gguf: Path) -> None:
    assert describe_gguf(change(tiny_gguf, {"general.file_type": None})).quant == "Q4_K"
    assert describe_gguf(change(tiny_gguf, {"general.file_type": 7})).quant == "Q8_0"


@pytest.fixture(scope="module")
def deepseek_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deepseek") / "m.gguf"
    synthesize(make_tiny("deepseek2", n_layers=2), path)
    return path


def test_mla_described_since_2025_is_the_same_model(deepseek_gguf: Path) -> None:
    keys = {
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": 256 + 32,
        "deepseek2.attention.value_length": 256,
        "deepseek2.attention.key_length_mla": 96,
        "deepseek2.attention.value_length_mla": 64,
    }
    shapes: dict[str, tuple[int, ...] | None] = {}
    for layer in range(2):
        shapes[f"blk.{layer}.attn_kv_b.weight"] = None
        shapes[f"blk.{layer}.attn_k_b.weight"] = (64, 256, 4)
        shapes[f"blk.{layer}.attn_v_b.weight"] = (256, 64, 4)
    new, old = describe_gguf(change(deepseek_gguf, keys, shapes)), describe_gguf(open_gguf(deepseek_gguf))
    assert dataclasses.replace(new, tensors=()) == dataclasses.replace(old, tensors=())
    assert new.n_params == old.n_params


@pytest.mark.parametrize(
    ("metadata", "where"),
    [
        ({"deepseek2.expert_used_count": 9}, "expert_used_count"),
        ({"deepseek2.expert_count": 9}, "expert_group_count"),
        ({"deepseek2.expert_group_used_count": 5}, "expert_group_count"),
        ({"deepseek2.expert_used_count": 5}, "expert_group_used_count"),
        ({"deepseek2.expert_gating_func": 4}, "expert_gating_func"),
        ({"deepseek2.expert_weights_norm": 1}, "expert_weights_norm"),
        ({"deepseek2.rope.dimension_count": 96}, "rope.dimension_count"),
        ({"deepseek2.attention.kv_lora_rank": None}, "kv_lora_rank"),
        ({"deepseek2.expert_shared_count": 2}, "blk.1.ffn_gate_shexp.weight"),
        ({"deepseek2.leading_dense_block_count": 2}, "blk.1.ffn_gate.weight"),
    ],
)
def test_routing_that_contradicts(metadata: dict[str, Any], where: str, deepseek_gguf: Path) -> None:
    with pytest.raises(CorruptFile) as error:
        describe_gguf(change(deepseek_gguf, metadata))
    assert where in error.value.where


def test_all_faults_of_tensors_are_told(tiny_gguf: Path) -> None:
    wrong = change(
        tiny_gguf,
        {"llama.block_count": 2},
        {"blk.0.ffn_up.weight": None, "blk.0.attn_q.weight": (256, 255), "blk.0.new.weight": (1,)},
    )
    faults: list[UserError] = []
    found = describe_gguf(wrong, faults)
    layer = [t.name for t in describe_gguf(open_gguf(tiny_gguf)).tensors if t.name.startswith("blk.0.")]
    missing = ["blk.0.ffn_up.weight", *(name.replace("blk.0.", "blk.1.") for name in layer)]
    names = {error.where.rpartition(": ")[2]: error.found for error in faults}
    assert {name for name, text in names.items() if text == "this tensor is missing"} == set(missing)
    assert "its shape is [256, 255]" in names["blk.0.attn_q.weight"] and "does not know" in names["blk.0.new.weight"]
    assert len(faults) == len(missing) + 2
    # What is missing is described as the layers are that are there.
    types = {tensor.name: tensor.quant for tensor in found.tensors}
    assert found.n_layers == 2 and len(types) == 3 + 2 * len(layer)
    for name in layer:
        assert types[name.replace("blk.0.", "blk.1.")] == types[name]
    assert build_tree(found).weight_bytes == found.n_bytes


def test_a_load_tells_the_first_and_how_many_more(tiny_gguf: Path) -> None:
    shapes: dict[str, tuple[int, ...] | None] = {}
    shapes |= {f"blk.0.{name}.weight": None for name in ("attn_q", "attn_k", "ffn_up", "ffn_gate", "ffn_down")}
    with pytest.raises(CorruptFile, match=r"blk\.0\.attn_q\.weight: this tensor is missing; wrong, too: 4 others"):
        describe_gguf(change(tiny_gguf, shapes=shapes))


def test_a_count_of_layers_is_not_believed_for_ever(tiny_gguf: Path) -> None:
    with pytest.raises(CorruptFile, match=f"{MOST_FAULTS - 1} or more others"):
        describe_gguf(change(tiny_gguf, {"llama.block_count": 1 << 30}), [])
