"""``gpu_experts`` in a rule: read, refused, counted, explained, written, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.cli.rules import _gpu_experts
from kbench.core import CPU, Device, GpuExperts, Module, Phase, Placement, UserError, parse_yaml
from kbench.model import build_tree, embedded
from kbench.rules import (
    RuleSet,
    Serving,
    assign,
    check,
    emit,
    experts_text,
    explain,
    export,
    fold_rows,
    load_rules,
    memory_by_device,
    parse_rules,
    weights_by_device,
)
from kbench.rules.gpu_experts import read_experts

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
MODEL = "deepseek-v2-lite-chat"  # 26 layers of 64 experts behind a dense one
TREE = build_tree(embedded(MODEL))
RULE = "kbench: 1\nrules:\n- match: {{name: '\\.experts$'}}\n  replace: {{class: {class_}, kwargs: {{{kwargs}}}}}\n"


def rules_of(kwargs: str, class_: str = "Experts") -> RuleSet:
    return parse_rules(parse_yaml(RULE.format(kwargs=kwargs, class_=class_)))


def experts_module(tree: Module = TREE, layer: int = 1) -> Module:
    return next(module for module in tree.walk() if module.name == f"model.layers.{layer}.mlp.experts")


def test_numbers_and_ranges_on_the_first_gpu_unless_said() -> None:
    for more, device, op in (
        ("", GPU, "auto"),
        (", gpu_experts_device: 'cuda:1', gpu_experts_op: triton", GPU1, "triton"),
    ):
        found = assign(rules_of(f"generate_device: cpu, gpu_experts: [0-3, 31, 7-8]{more}"), TREE)
        expected = GpuExperts((0, 1, 2, 3, 7, 8, 31), device, op)
        assert found["model.layers.5.mlp.experts"] == Placement(gpu_experts=expected)
        assert found["model.layers.5.mlp.gate"] == Placement()


@pytest.mark.parametrize(
    ("kwargs", "class_", "complaint"),
    [
        ("gpu_experts: 16", "Experts", r"16 is no list · accepted: a list of numbers .* the first 16: \[0-15\]"),
        ("gpu_experts: '0-15'", "Experts", "no list"),
        ("gpu_experts: []", "Experts", "an empty list"),
        ("gpu_experts: [3-1]", "Experts", "'3-1' is no range"),
        ("gpu_experts: [0-3, 2]", "Experts", "expert 2 is there twice"),
        ("gpu_experts: [-1]", "Experts", "-1 is no range of experts"),
        ("gpu_experts: [first]", "Experts", "'first' is neither a number nor a range"),
        ("gpu_experts: [true]", "Experts", "True is neither"),
        ("gpu_experts: [0-999999]", "Experts", "no range of experts"),
        ("gpu_experts: [0], gpu_experts_device: cpu", "Experts", "cpu is no GPU"),
        ("gpu_experts: [0], gpu_experts_device: gpu", "Experts", "did you mean cuda"),
        ("gpu_experts: [0], gpu_experts_op: cpu.avx2", "Experts", "cpu.avx2 on cuda:0"),
        ("gpu_experts: [0], gpu_experts_op: null", "Experts", "nothing to generate with"),
        ("gpu_experts: [0], generate_device: 'cuda:0'", "Experts", "other experts are on cuda:0 too"),
        ("gpu_experts_device: 'cuda:0'", "Experts", "gpu_experts_device of no experts"),
        ("gpu_expert: [0]", "Experts", "did you mean gpu_experts"),
        ("gpu_experts: [0]", "MLP", "unknown kwarg 'gpu_experts'"),
        (
            "gpu_experts: [0]",
            "ktransformers.operators.experts.KTransformersExperts",
            "unknown kwarg 'gpu_experts'",
        ),
    ],
)
def test_mistakes_are_found_without_a_model(kwargs: str, class_: str, complaint: str) -> None:
    rules = rules_of(kwargs, class_)
    with pytest.raises(UserError, match=complaint):
        assign(rules, TREE)
    assert next(finding.line for finding in check(rules) if finding.code != "unmatched") == 4


@pytest.mark.parametrize(("experts", "complaint"), [("[3, 64]", "expert 64 of 64"), ("[0-63]", "all 64 experts")])
def test_experts_that_the_layer_has_not(experts: str, complaint: str) -> None:
    rules = rules_of(f"gpu_experts: {experts}")
    found = [finding for finding in check(rules, TREE) if finding.code == "gpu-experts"]
    assert len(found) == 1 and complaint in found[0].found and "0 to 63" in found[0].accepted
    assert not any(finding.code == "gpu-experts" for finding in check(rules_of("gpu_experts: [0-62]"), TREE))


def test_a_device_that_is_not_there() -> None:
    found = check(rules_of("gpu_experts: [0], gpu_experts_device: 'cuda:1'"), TREE, devices={CPU, GPU})
    assert [finding.where for finding in found if finding.code == "no-device"] == [
        "rule 1, replace.kwargs.gpu_experts_device"
    ]


def test_bytes_lie_where_experts_do() -> None:
    rules = rules_of("gpu_experts: [0-15]")
    whole = memory_by_device(rules_of("generate_device: cpu"), TREE, {})[CPU]["weights"]
    layers = [module for module in TREE.walk() if "Experts" in module.classes]
    quarter = sum(tensor.n_bytes for module in layers for tensor in module.tensors) // 4
    assert memory_by_device(rules, TREE, {}) == {CPU: {"weights": whole - quarter}, GPU: {"weights": quarter}}
    rows = explain(rules, TREE)
    assert weights_by_device(rows)[Phase.DECODE] == {CPU: whole - quarter, GPU: quarter}
    (folded,) = [row for row in fold_rows(rows) if row.module.endswith(".experts")]
    assert (folded.module, folded.gpu_experts_bytes) == ("model.layers.1-26.mlp.experts", quarter)
    over = check(rules, TREE, budgets={GPU: quarter - 1})
    (found,) = [finding for finding in over if finding.code == "over-budget"]
    assert (found.line, found.where) == (4, "rule 1, replace.kwargs.generate_device")


def test_rows_say_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RULE.format(class_="Experts", kwargs="gpu_experts: [0-3, 9], gpu_experts_device: 'cuda:1'"))
    told = CliRunner().invoke(build_app(), ["rules", "explain", str(path), "--model", MODEL, "--json"])
    rows = {row["module"]: row for row in json.loads(told.stdout)["rows"]}
    part = rows["model.layers.1-26.mlp.experts"]["gpu_experts"]
    assert (part["experts"], part["device"], part["implementation"]) == ([0, 1, 2, 3, 9], "cuda:1", "auto")
    assert rows["model.layers.1-26.mlp.gate"]["gpu_experts"] is None
    shown = _gpu_experts(next(row for row in explain(load_rules(path), TREE) if row.gpu_experts_bytes))
    assert shown.startswith("[0-3, 9] on cuda:1 auto, ")
    wrong = tmp_path / "w.yaml"
    wrong.write_text(RULE.format(class_="Experts", kwargs="gpu_experts: [0-63]"))
    result = CliRunner().invoke(build_app(), ["rules", "check", str(wrong), "--model", MODEL, "--vram", "8G"])
    assert result.exit_code == 1 and "all 64 experts" in result.stdout


def test_a_router_on_the_cpu_keeps_the_map_out_of_a_graph(tmp_path: Path) -> None:
    """The operation that tells the CPU which experts are its own is a graph's where the router is a GPU's."""
    path = tmp_path / "r.yaml"
    experts = "- match: {name: '\\.experts$'}\n  replace: {class: Experts, kwargs: {gpu_experts: [0-3]}}\n"
    for router, told in (("cuda:0", False), ("cpu", True)):
        rest = f"- match: {{class: MoEGate}}\n  replace: {{class: MoEGate, kwargs: {{generate_device: '{router}'}}}}\n"
        rest += "- match: {name: '^(model\\.l|lm)'}\n  replace: {class: default, kwargs: {generate_device: 'cuda:0'}}\n"
        path.write_text(f"kbench: 1\nrules:\n{experts}{rest}")
        result = CliRunner().invoke(build_app(), ["rules", "check", str(path), "--model", MODEL, "--json"])
        found = [one for one in json.loads(result.stdout)["findings"] if one["code"] == "uncaptured"]
        assert any("expert_map" in one["found"] for one in found) == told
        assert all("router" in one["todo"] for one in found if "expert_map" in one["found"])


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_is_written_is_read(experts: set[int]) -> None:
    given: Any = parse_yaml(f"a: {experts_text(experts)}")
    assert read_experts(given["a"]) == tuple(sorted(experts))


def test_an_assignment_reads_back_with_a_rule_for_each_set_of_experts() -> None:
    sets = {layer: (0, 2, 3, 4, 63) if layer % 3 else (layer,) for layer in range(1, 27)}
    places = {module.name: Placement(GPU, "auto", GPU, "auto") for module in TREE.walk()}
    for layer, experts in sets.items():
        part = GpuExperts(experts, GPU if layer < 20 else GPU1, "triton")
        places[f"model.layers.{layer}.mlp.experts"] = Placement(CPU, "cpu.avx2", CPU, "cpu.avx2", gpu_experts=part)
    text = emit(places, TREE)
    assert assign(parse_rules(parse_yaml(text)), TREE) == places
    assert 'gpu_experts: [0, 2-4, 63], gpu_experts_device: "cuda:0", gpu_experts_op: triton' in text
    assert text.count("gpu_experts:") == 2 + 8  # two devices for what most layers have, and every third its own


def test_other_tools_are_told_what_they_understand() -> None:
    places = {module.name: Placement(GPU, "auto", GPU, "auto") for module in TREE.walk()}
    part = Placement(threads=6, gpu_experts=GpuExperts(tuple(range(16)), GPU))
    places |= {name: part for name in places if name.endswith(".experts")}
    serving = Serving("/models/lite/q4.gguf", "/models/hf")
    kt = export(places, TREE, "sglang-kt", serving)
    assert dict(zip(kt.arguments[::2], kt.arguments[1::2], strict=True))["--kt-num-gpu-experts"] == "16"
    assert any("its own choice, not what gpu_experts lists" in note for note in kt.notes)
    for tool in ("llama.cpp", "ik_llama.cpp", "ktransformers"):
        notes = export(places, TREE, tool, serving).notes
        assert any("gpu_experts of model.layers.1-26.mlp.experts cannot be said" in note for note in notes)


def test_a_file_with_them_loads(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RULE.format(class_="Experts", kwargs="gpu_experts: [0-3, 9]"))
    part = assign(load_rules(path), TREE)[experts_module().name].gpu_experts
    assert part == GpuExperts((0, 1, 2, 3, 9), GPU)
