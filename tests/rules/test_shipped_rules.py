"""Every rule file that comes with kbench is right for its model and reads back to what wrote it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import CPU, Device, Phase, parse_yaml
from kbench.model import build_tree, load_descriptor, lower
from kbench.rules import assign, check, emit, load_rules, parse_rules

FILES = sorted((Path(__file__).parents[2] / "rules").glob("*.yaml"))


def _model(path: Path) -> str:
    """``glm-4.5`` of ``glm-4.5.2gpu.yaml``."""
    return re.sub(r"\.\dgpu$", "", path.stem)


def test_there_are_some() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_right_for_its_model(path: Path) -> None:
    rules, (descriptor, _) = load_rules(path), load_descriptor(_model(path))
    tree = build_tree(descriptor)
    assert [found for found in check(rules, tree, strict=True) if found.severity != "info"] == []
    placed = assign(rules, tree)
    assert assign(parse_rules(parse_yaml(emit(placed, tree))), tree) == placed


_ONE_GPU = [path for path in FILES if path.stem.endswith(".1gpu")]


@pytest.mark.parametrize("path", _ONE_GPU, ids=lambda path: path.stem)
def test_the_command_in_its_header_passes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the repository's root, as printed: a budget that the model does not fit would be an error."""
    monkeypatch.chdir(path.parents[1])
    (command,) = re.findall(r"^# .*: kbench (rules check .*)$", path.read_text(), re.MULTILINE)
    words = command.split()
    assert words[2] == f"rules/{path.name}" and {"--vram", "--dram"} <= set(words)
    result = CliRunner().invoke(build_app(), words)
    assert result.exit_code == 0, result.output
    assert " of " in result.stdout and result.stdout.rstrip().endswith("nothing found")


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


# Model -> layers, and the first of the second GPU.
SHIPPED = {
    "deepseek-v2-chat": (60, 30),
    "deepseek-v2-lite-chat": (27, 13),
    "deepseek-v3": (61, 30),
    "glm-4.5": (92, 46),
    "glm-4.5-air": (46, 23),
    "gpt-oss-20b": (24, 12),
    "gpt-oss-120b": (36, 18),
    "kimi-k2": (61, 30),
    "mixtral-8x7b": (32, 16),
    "qwen3-30b-a3b": (48, 24),
    "qwen3-235b-a22b": (94, 47),
}


@pytest.mark.parametrize("model", SHIPPED)
def test_one_gpu_has_what_every_token_reads(model: str) -> None:
    tree = build_tree(load_descriptor(model)[0])
    placed = assign(load_rules(FILES[0].parent / f"{model}.1gpu.yaml"), tree)
    for module in tree.walk():
        in_memory = {"routed experts", "embedding"} & {tensor.kind for tensor in module.tensors}
        for phase in Phase:
            assert placed[module.name].device(phase) == (CPU if in_memory else Device("cuda")), module.name
    assert all(placed[m.name].out_device == Device("cuda") for m in tree.walk() if m.name.endswith(".experts"))


@pytest.mark.parametrize("model", SHIPPED)
def test_two_gpus_share_the_layers_and_cross_once(model: str) -> None:
    n_layers, half = SHIPPED[model]
    descriptor, _ = load_descriptor(model)
    tree = build_tree(descriptor)
    placed = assign(load_rules(FILES[0].parent / f"{model}.2gpu.yaml"), tree)
    assert descriptor.n_layers == n_layers
    gpus = Device("cuda", 0), Device("cuda", 1)
    for layer in range(n_layers):
        home = gpus[layer >= half]
        inside = [module for module in tree.walk() if module.name.startswith(f"model.layers.{layer}.")]
        for module in inside:
            placement = placed[module.name]
            assert (placement.out_device or placement.generate_device) == home, module.name
    assert placed["lm_head"].generate_device == placed["model.norm"].generate_device == gpus[1]
    calls = lower(descriptor, placed, Phase.DECODE, 1, 64, resolve=lambda problem, device: "reference")
    between = [
        call
        for call in calls
        if call.op == "transfer" and {call.problem["src"], call.problem["dst"]} == {"cuda:0", "cuda:1"}
    ]
    assert len(between) == 1
