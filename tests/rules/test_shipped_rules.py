"""Every rule file that comes with kbench is right for its model and reads back to what wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.core import CPU, Device, Phase, parse_yaml
from kbench.model import build_tree, load_descriptor
from kbench.rules import assign, check, emit, load_rules, parse_rules

FILES = sorted((Path(__file__).parents[2] / "rules").glob("*.yaml"))


def test_there_are_some() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_right_for_its_model(path: Path) -> None:
    rules, (descriptor, _) = load_rules(path), load_descriptor(path.stem)
    tree = build_tree(descriptor)
    assert check(rules, tree, strict=True) == []
    placed = assign(rules, tree)
    assert assign(parse_rules(parse_yaml(emit(placed, tree))), tree) == placed


def test_deepseek_v2_is_placed_by_intensity() -> None:
    """What is read for every token goes to the GPU; 160 experts of which 6 are visited, and one row of the embedding,
    stay in DRAM."""
    rules, (descriptor, _) = load_rules(FILES[0].parent / "deepseek-v2-chat.yaml"), load_descriptor("deepseek-v2-chat")
    placed = assign(rules, build_tree(descriptor))
    gpu = Device("cuda")
    for layer in range(1, descriptor.n_layers):
        name = f"model.layers.{layer}"
        assert placed[f"{name}.mlp.experts"].device(Phase.DECODE) == CPU
        for part in ("self_attn", "self_attn.q_b_proj", "self_attn.o_proj", "mlp.shared_experts.up_proj"):
            assert placed[f"{name}.{part}"].device(Phase.DECODE) == gpu
    assert placed["model.embed_tokens"].device(Phase.DECODE) == CPU
