"""What is written reads back as the same assignment."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rule_trees import tiny_tree

from kbench.core import CPU, CheckBroken, Device, Module, Placement, UserError, parse_yaml
from kbench.model import build_tree, embedded
from kbench.rules import assign, check, emit, load_rules, parse_rules, write_rules
from kbench.rules.fold import number_regex, ranges, split_number
from kbench.rules.implementations import OPS

TREE = tiny_tree()
GPU = Device("cuda", 0)


@lru_cache(maxsize=1)
def deepseek_v2() -> Module:
    return build_tree(embedded("deepseek-v2-chat"))


devices = st.sampled_from([CPU, GPU, Device("cuda", 1), Device("cuda", 12)])


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    def phase() -> tuple[Device, str]:
        device = draw(devices)
        fitting = [name for name, op in OPS.items() if op.kind in ("", device.kind) and name != "cpu"]
        return device, draw(st.sampled_from(fitting))

    out_device = draw(st.none() | devices)
    threads, *counts = (draw(st.none() | st.integers(1, 256)) for _ in range(3))
    names = st.sampled_from(["rows", "tokens", "k block", "yes", "{", "1"])
    values = st.integers(0, 64) | st.sampled_from(["dynamic", "no", "7", "a: b", "'"])
    return Placement(
        *phase(), *phase(), out_device, threads, draw(st.dictionaries(names, values, max_size=2)), {}, *counts
    )


# Names with what a pattern or YAML could trip over: dots, digits, brackets, quotes, line ends, other scripts.
parts = st.one_of(
    st.integers(0, 130).map(str),
    st.sampled_from(["layers", "mlp", "007", "", "a.b", "$", "(", "[x]", "\\", "'", '"', "\n", "a b", "#"]),
    st.sampled_from(["é", "\x7f", "𝛼", "٣"]),
    st.text(max_size=3),
)  # fmt: skip
names = st.lists(parts, min_size=1, max_size=4).map(".".join)
classes = st.sampled_from([("Linear", "torch.nn.Linear"), ("Experts",), ("RMSNorm",), ("Somebody's",), ()])


@st.composite
def trees(draw: st.DrawFn) -> Module:
    modules = [
        Module(name, draw(classes), children=())
        for name in draw(st.lists(names.filter(bool), unique=True, max_size=12))
    ]
    while len(modules) > 3:  # hang some below others
        child = modules.pop()
        at = draw(st.integers(0, len(modules) - 1))
        modules[at] = Module(modules[at].name, modules[at].classes, children=(*modules[at].children, child))
    return Module("", ("CausalLM",), children=tuple(modules))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=trees(), data=st.data())
def test_any_assignment_of_any_tree_reads_back(tree: Module, data: st.DataObject) -> None:
    few = data.draw(st.lists(placements(), min_size=1, max_size=3))
    assignment = {module.name: data.draw(st.sampled_from(few)) for module in tree.walk()}
    text = emit(assignment, tree, {"model": "x"})
    other = Placement(GPU, "torch", GPU, "torch", threads=99)  # the default must not matter
    rules = parse_rules(parse_yaml(text))
    assert rules.native and rules.findings == ()
    assert assign(rules, tree, other) == assignment
    assert emit(assignment, tree, {"model": "x"}) == text


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_real_tree_reads_back_with_few_rules(data: st.DataObject) -> None:
    tree = deepseek_v2()
    layers = data.draw(st.sets(st.integers(1, 59)))
    assignment = {
        module.name: Placement(GPU, "auto", GPU, "auto")
        if not module.name.endswith(".experts") or split_number(module.name)[1] in layers
        else Placement(CPU, "cpu.avx2", GPU, "triton", GPU, 2, {"rows": 16})
        for module in tree.walk()
    }
    text = emit(assignment, tree)
    assert assign(parse_rules(parse_yaml(text)), tree) == assignment
    assert text.count("- match:") < 25


def test_the_text_of_a_small_tree() -> None:
    assignment = {module.name: Placement(GPU, "auto", GPU, "auto") for module in TREE.walk()}
    for layer in (1, 2):
        experts = Placement(CPU, "cpu.avx2", GPU, "triton", GPU, 16, {"rows": 16, "tokens": 8})
        assignment[f"model.layers.{layer}.mlp.experts"] = experts
    text = emit(assignment, TREE, {"model": "DeepSeek", "budgets": {"vram_bytes": 1}, "result_ids": ["a", "b"]})
    assert text.startswith(
        "kbench: 1\nprovenance:\n  model: DeepSeek\n  budgets:\n    vram_bytes: 1\n"
        "  result_ids:\n  - a\n  - b\nrules:\n"
    )
    assert (
        "# routed experts: 2 modules, 1.12 KiB\n"
        '- match: {name: "^model\\\\.layers\\\\.[12]\\\\.mlp\\\\.experts$"}\n'
        "  replace:\n    class: Experts\n"
        '    kwargs: {generate_device: cpu, generate_op: cpu.avx2, prefill_device: "cuda:0", prefill_op: triton, '
        'out_device: "cuda:0", threads: 16, block: {rows: 16, tokens: 8}}\n'
        "  recursive: false\n"
    ) in text
    assert check(parse_rules(parse_yaml(text)), TREE, strict=True, devices={CPU, GPU}) == []


def test_a_module_that_moves_changes_only_its_lines() -> None:
    one = {module.name: Placement() for module in TREE.walk()}
    two = {**one, "lm_head": Placement(threads=2)}
    before, after = emit(one, TREE).splitlines(), emit(two, TREE).splitlines()
    assert [line for line in before if line not in after] == [] and len(after) - len(before) <= 5


def test_a_module_that_the_assignment_lacks_is_written_too() -> None:
    assert assign(parse_rules(parse_yaml(emit({}, TREE))), TREE, Placement(threads=9))["lm_head"] == Placement()


def test_provenance_is_plain_data_and_comes_back() -> None:
    provenance = {
        "created": "2025-01-01T00:00:00",
        "note": "yes",
        "decode": {"tokens_per_s": 17.25, "label": "modelled"},
        "tiny": 1e-7,
        "ids": ["0123", "a: b", "#x", "né\n"],
        "none": None,
        "flag": True,
    }
    assert parse_rules(parse_yaml(emit({}, TREE, provenance))).provenance == provenance
    with pytest.raises(UserError, match=r"provenance\.x: object is no plain data"):
        emit({}, TREE, {"x": object()})


def test_what_no_rule_can_say_is_refused() -> None:
    with pytest.raises(UserError, match="unknown op 'warp'"):
        emit({"lm_head": Placement(generate_op="warp")}, TREE)
    with pytest.raises(CheckBroken):  # "cpu" is a word for auto in a file: it would come back as that
        emit({"lm_head": Placement(generate_op="cpu")}, TREE)


def test_what_is_written_loads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.yaml"
    write_rules(path, emit({}, TREE))
    assert assign(load_rules(path), TREE) == {module.name: Placement() for module in TREE.walk()}


@given(st.sets(st.integers(0, 1200), min_size=1))
def test_number_patterns_are_exact(numbers: set[int]) -> None:
    pattern = re.compile(f"^{number_regex(numbers)}$")
    assert {number for number in range(1300) if pattern.search(str(number))} == numbers


@pytest.mark.parametrize(
    ("numbers", "pattern", "text"),
    [
        (range(1, 60), "([1-9]|[1-5][0-9])", "1-59"),
        ([7], "7", "7"),
        ([0, 1], "[01]", "0-1"),
        (range(61), "([0-9]|[1-5][0-9]|60)", "0-60"),
        ([0, 2, 3, 4, 10], "([02-4]|10)", "0,2-4,10"),
        (range(30, 60), "[3-5][0-9]", "30-59"),
    ],
)
def test_patterns_and_ranges_are_short(numbers: Any, pattern: str, text: str) -> None:
    assert number_regex(list(numbers)) == pattern
    assert ranges(numbers) == text


@pytest.mark.parametrize("chosen", [None, True, False])
def test_absorbing_in_prefill_reads_back(chosen: bool | None) -> None:
    tree = build_tree(embedded("deepseek-v2-lite-chat"))
    name = "model.layers.3.self_attn"
    text = emit({name: Placement(absorb_for_prefill=chosen)}, tree)
    assert ("absorb_for_prefill" in text) == (chosen is not None)
    assert assign(parse_rules(parse_yaml(text)), tree, Placement())[name].absorb_for_prefill is chosen
    kt = "- match: {name: 'self_attn$'}\n  replace:\n    class: ktransformers.operators.attention."
    kt += f"KDeepseekV2Attention\n    kwargs: {{absorb_for_prefill: {str(chosen).lower()}}}\n"
    if chosen is not None:
        assert assign(parse_rules(parse_yaml(kt)), tree, Placement())[name].absorb_for_prefill is chosen
