"""Whole files in KTransformers' dialect, written as its users write them, on the models that they are for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from rule_trees import tiny_tree

from kbench.core import CPU, Device, Module, Placement, parse_yaml
from kbench.model import build_tree, embedded
from kbench.rules import (
    assign,
    check,
    emit,
    explain,
    export,
    fold_rows,
    load_rules,
    parse_rules,
    read_rules,
)

FILES = Path(__file__).parent / "fixtures"
GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
MARLIN, MARLIN1 = Placement(GPU, "marlin", GPU, "marlin"), Placement(GPU1, "marlin", GPU1, "marlin")
PLAIN, PLAIN1 = Placement(GPU, "auto", GPU, "auto"), Placement(GPU1, "auto", GPU1, "auto")
CPU_LINEAR = Placement(CPU, "auto", CPU, "auto", CPU)

PLACED = [
    (
        "deepseek_v2_one_gpu.yaml",
        "deepseek-v2-chat",
        {
            "model.embed_tokens": Placement(),
            "model.layers.0.mlp.gate_proj": MARLIN,
            "model.layers.7.self_attn.q_a_proj": MARLIN,
            "model.layers.7.self_attn.kv_b_proj": PLAIN,
            "model.layers.7.self_attn.rotary_emb": PLAIN,
            "model.layers.7.mlp.shared_experts.up_proj": MARLIN,
            "model.layers.7.mlp.experts": Placement(CPU, "auto", CPU, "auto", GPU),
            "lm_head": PLAIN,  # no rule
        },
    ),
    (
        "deepseek_v2_two_gpus.yaml",
        "deepseek-v2-chat",
        {
            "model.layers.29.self_attn.o_proj": MARLIN,
            "model.layers.30.self_attn.o_proj": MARLIN1,
            "model.layers.30.self_attn.kv_b_proj": PLAIN1,
            "model.layers.59.mlp.experts": Placement(CPU, "auto", CPU, "auto", GPU1),
            "model.layers.59.input_layernorm": PLAIN1,
            "model.norm": PLAIN1,
            "lm_head": PLAIN1,
        },
    ),
    (
        "deepseek_v2_lite_gpu_cpu.yaml",
        "deepseek-v2-lite-chat",
        {
            "model.layers.9.self_attn.q_proj": MARLIN,
            "model.layers.10.self_attn.q_proj": CPU_LINEAR,
            "model.layers.10.self_attn.kv_b_proj": Placement(),
            "model.layers.26.mlp.experts": Placement(CPU, "auto", CPU, "auto", CPU),
            "model.norm": Placement(),
            "lm_head": CPU_LINEAR,
        },
    ),
]


@lru_cache(maxsize=2)
def tree_of(model: str) -> Module:
    return build_tree(embedded(model))


@pytest.mark.parametrize(("file", "model", "expected"), PLACED)
def test_files_load_place_and_survive_a_round_trip(file: str, model: str, expected: dict[str, Placement]) -> None:
    tree = tree_of(model)
    rules = load_rules(FILES / file)
    placed = assign(rules, tree)
    assert {name: placed[name] for name in expected} == expected
    assert [one for one in check(rules, tree, strict=True) if one.severity != "info"] == []
    assert assign(parse_rules(parse_yaml(emit(placed, tree))), tree) == placed


@pytest.mark.parametrize(("file", "model"), [case[:2] for case in PLACED])
def test_the_export_reads_back_to_the_same_devices(file: str, model: str) -> None:
    tree = tree_of(model)
    placed = assign(load_rules(FILES / file), tree)
    exported = parse_rules(parse_yaml(export(placed, tree, "ktransformers").file))
    assert [one for one in check(exported, tree) if one.severity != "info"] == []
    back = assign(exported, tree)
    for module in tree.walk():
        if module.tensors:
            assert back[module.name].generate_device == placed[module.name].generate_device, module.name
            if placed[module.name].generate_op != "auto":  # which KTransformers does not have
                assert back[module.name].generate_op == placed[module.name].generate_op, module.name


def test_a_break_in_the_transfer_map_is_found() -> None:
    text = (FILES / "deepseek_v2_two_gpus.yaml").read_text()
    line = text.splitlines().index('        30: "cuda:1"') + 1
    broken = parse_rules(parse_yaml(text.replace('        30: "cuda:1"', '        29: "cuda:1"')), "two.yaml")
    found = [one for one in check(broken, tree_of("deepseek-v2-chat")) if one.code == "device-flow"]
    assert found and all("hidden state is on cuda:1" in one.found and "layers.29." in one.found for one in found)
    absent = [one for one in check(broken, devices={CPU, GPU}) if one.code == "no-device"]
    assert line in {one.line for one in absent} or any("cuda:1" in one.found for one in absent)


def test_explain_says_which_line_placed_what() -> None:
    tree = tree_of("deepseek-v2-chat")
    rows = explain(read_rules(FILES / "deepseek_v2_one_gpu.yaml"), tree)
    assert [row.module for row in rows] == [module.name for module in tree.walk()]
    folded = {row.module: row for row in fold_rows(rows)}
    experts = folded["model.layers.1-59.mlp.experts"]
    assert (experts.rule, experts.line, experts.n_modules) == (4, 27, 59)
    assert experts.n_bytes == sum(row.n_bytes for row in rows if row.module.endswith(".experts"))
    assert experts.as_dict()["decode"] == {"device": "cpu", "implementation": "auto"}
    assert sum(row.n_bytes for row in folded.values()) == tree.weight_bytes
    assert folded["lm_head"].line is None


def test_explain_folds_what_lies_below_a_closed_module() -> None:
    text = (
        "- match: {name: 'layers\\.[0-9]+\\.self_attn$'}\n"
        "  replace: {class: default, kwargs: {generate_device: cpu}}\n  recursive: false\n"
    )
    folded = {row.module: row for row in fold_rows(explain(parse_rules(parse_yaml(text)), tiny_tree()))}
    below = folded["model.layers.0-2.self_attn.q_proj"]
    assert (below.line, below.n_modules, below.above) == (1, 3, "model.layers.0-2.self_attn")
    assert folded["model.layers.0-2.self_attn"].above is None
