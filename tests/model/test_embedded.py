"""Models known by name, and the files that describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.core import CorruptFile, UserError
from kbench.model import embedded, embedded_names, footprint, load_descriptor
from kbench.model.embedded import read_descriptor

FOLDER = Path(read_descriptor.__wrapped__.__code__.co_filename).parent / "descriptors"


# Name -> parameters as published, in billions (model cards), and exactly as our table has them. GLM's and DeepSeek-V3's
# published totals leave out or include the layer that drafts; within 1 % they are the same.
PUBLISHED = {
    "deepseek-v2-chat": (236, 235_741_434_880),
    "deepseek-v2-lite-chat": (15.7, 15_706_484_224),
    "deepseek-v3": (671, 671_026_419_200),
    "glm-4.5": (355, 352_797_829_024),
    "glm-4.5-air": (106, 106_852_251_264),
    "gpt-oss-120b": (116.8, 116_829_156_672),
    "gpt-oss-20b": (20.9, 20_914_757_184),
    "kimi-k2": (1030, 1_026_408_232_448),
    "mixtral-8x7b": (46.7, 46_702_792_704),
    "qwen3-235b-a22b": (235, 235_093_634_560),
    "qwen3-30b-a3b": (30.5, 30_532_122_624),
    "qwen3-next-80b-a3b": (80, 79_674_391_296),
}


def test_models() -> None:
    assert set(PUBLISHED) <= set(embedded_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters(name: str) -> None:
    published, exact = PUBLISHED[name]
    model = embedded(name)
    assert model.n_params == exact
    assert model.n_params / 1e9 == pytest.approx(published, rel=0.01)


def test_layers_that_draft_are_in_the_file_only() -> None:
    # The card of a 2.619-bit file of GLM-4.5 gives 109.269 GiB: 358.39 B parameters, in four digits.
    model = embedded("glm-4.5")
    assert model.n_params + sum(t.n_elements for t in model.draft) == pytest.approx(
        109.269 * 2**30 * 8 / 2.619, rel=2e-4
    )
    assert not any(tensor.name.startswith("blk.92.") for tensor in model.tensors)
    assert all(tensor.name.startswith("blk.92.") for tensor in model.draft) and len(model.draft) == 25


def test_gpt_oss_as_published() -> None:
    model = embedded("gpt-oss-20b")
    assert footprint(model).active_params - model.vocab * model.d == 3_608_307_264  # 3.6 B, without the embedding
    # Files of both kinds on Hugging Face have 13.01 MB of metadata: the vocabulary.
    assert 11_624_759_488 - model.n_bytes == pytest.approx(13.01e6, rel=1e-3)
    assert 12_109_566_560 - embedded("gpt-oss-20b", "MXFP4_MOE").n_bytes == pytest.approx(13.01e6, rel=1e-3)
    assert [model.layer_window(layer) for layer in (0, 1, 22, 23)] == [128, 0, 128, 0]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("deepseek-v2-chat", "DeepSeek-V2-Chat"),
        ("DeepSeek-V2-Chat", "DeepSeek-V2-Chat"),
        ("deepseek_v2", "DeepSeek-V2-Chat"),
        ("deepseek-ai/DeepSeek-V2-Lite", "DeepSeek-V2-Lite-Chat"),
        ("DEEPSEEK-R1", "DeepSeek-V3"),
        ("DeepSeek V3", "DeepSeek-V3"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    descriptor, file = load_descriptor(spelling)
    assert descriptor.name == name
    assert file is None


def test_published_shapes() -> None:
    names = ("deepseek-v2-chat", "deepseek-v2-lite-chat", "deepseek-v3", "kimi-k2", "qwen3-30b-a3b")
    v2, lite, v3, kimi, qwen = (embedded(name) for name in names)
    assert qwen.qk_norm
    assert v2.mla is not None
    assert v2.moe is not None
    assert (v2.n_layers, v2.d, v2.heads, v2.head_dim, v2.moe.routed_scaling) == (60, 5120, 128, 192, 16.0)
    assert (v2.moe.n_group, v2.moe.topk_group, v2.moe.scoring) == (8, 3, "softmax")
    assert lite.mla is not None
    assert lite.mla.q_lora == 0
    assert v3.moe is not None
    assert (v3.moe.scoring, v3.moe.norm_topk_prob, v3.moe.first_dense) == ("sigmoid", True, 3)
    assert kimi.moe is not None
    assert (kimi.moe.experts, kimi.moe.n_group, kimi.heads) == (384, 1, 64)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("deepsek-v2-chat", "did you mean deepseek-v2-chat?"),
        ("gpt-5", "accepted: a .gguf file, a config.json, or one of deepseek-v2-chat"),
        ("no-such.gguf", "no-such.gguf: no such file"),
        ("folder", "folder: a directory"),
        ("notes.txt", "no GGUF file"),
    ],
)
def test_what_is_no_model(model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("not a model at all")
    with pytest.raises((UserError, CorruptFile)) as error:
        load_descriptor(model)
    assert says in error.value.message


GOOD = (FOLDER / "deepseek-v3.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("n_layers: 61", "n_layer: 61", "unknown key 'n_layer'"),
        ("n_layers: 61", "", "lacks 'n_layers'"),
        ("n_layers: 61", "n_layers: many", "n_layers is 'many'"),
        ("n_layers: 61", "n_layers: -1", "n_layers is -1"),
        ("top_k: 8", "top_k: true", "top_k is True"),
        ("rms_eps: 1.0e-6", "rms_eps: .nan", "rms_eps is nan"),
        ("architecture: deepseek2", "architecture: deepseek9", "'deepseek9'"),
        ("kbench_model: 1", "kbench_model: 2", "kbench_model 2"),
        ("  scoring: sigmoid", "  scoring: 3", "scoring is 3"),
    ],
)
def test_mistakes_in_a_descriptor(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert GOOD.count(old) == 1
    path = tmp_path / "m.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UserError) as error:
        read_descriptor(path)
    assert says in error.value.message
    assert str(path) in error.value.where
