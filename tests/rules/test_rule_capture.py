"""What `rules check` says of operators that keep a decode step from being one CUDA graph."""

from __future__ import annotations

from pathlib import Path

from rule_trees import tiny_tree

from kbench.core import Device, parse_yaml
from kbench.engine import planned_uncaptured
from kbench.model import build_tree, load_descriptor
from kbench.rules import Uncaptured, check, parse_rules

GPU = Device("cuda", 0)
ON_GPU = """kbench: 1
rules:
- match: {name: embed_tokens}
  replace: {class: default, kwargs: {generate_device: cpu, prefill_device: cpu}}
- match: {name: '\\.mlp\\.experts$'}
  replace: {class: Experts, kwargs: {generate_device: '%s', generate_op: %s, prefill_device: cpu}}
- match: {name: ''}
  replace: {class: default, kwargs: {generate_device: 'cuda:0', prefill_device: 'cuda:0'}}
"""


def found(text: str) -> list[str]:
    descriptor = load_descriptor("deepseek-v2-lite-chat")[0]
    rules = parse_rules(parse_yaml(text), "r.yaml")
    findings = check(rules, build_tree(descriptor), find_uncaptured=lambda a: planned_uncaptured(descriptor, a))
    return [str(one) for one in findings if one.code == "uncaptured"]


def test_experts_of_torch_on_a_gpu_are_told_with_their_cost() -> None:
    (line,) = found(ON_GPU % ("cuda:0", "torch"))
    assert line.startswith("r.yaml:6: rule 2, replace.kwargs.generate_op · torch moe_experts (model.layers.1.mlp.exp")
    assert "and 25 more) cannot be in a CUDA graph: the host looks at which experts were chosen" in line
    assert "ms (modelled)" in line and line.endswith("generate_device: cpu, whose experts run beside the graph and are "
                                                     "awaited in it")  # fmt: skip


def test_native_experts_on_the_cpu_are_a_part_of_the_graph() -> None:
    assert found(ON_GPU % ("cpu", "auto")) == []


def test_python_on_the_cpu_is_not() -> None:
    (line,) = found(ON_GPU % ("cpu", "torch"))
    assert "torch runs in Python on the CPU" in line and line.endswith("generate_op: auto, which takes native kernels")


def test_nothing_is_said_where_no_gpu_takes_part() -> None:
    assert found((ON_GPU % ("cpu", "torch")).replace("cuda:0", "cpu")) == []


def test_modules_without_a_rule_are_told_of_too(tmp_path: Path) -> None:
    one = Uncaptured("lm_head", "linear", "torch", GPU, "why", 100)
    rules = parse_rules(parse_yaml("- match: {name: nowhere}\n  replace: {class: Linear}\n"), "r.yaml")
    (line,) = [str(f) for f in check(rules, tiny_tree(), find_uncaptured=lambda _: [one]) if f.code == "uncaptured"]
    assert "0.5 to 1.6 ms (modelled)" in line and line.endswith("generate_op: auto, or generate_device: cpu")
