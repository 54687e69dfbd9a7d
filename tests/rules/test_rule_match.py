"""The dialect's semantics: who gets which rule."""

from __future__ import annotations

import pytest
from rule_trees import tiny_tree

from kbench.core import CPU, Device, Placement, UserError, parse_yaml
from kbench.rules import RuleSet, assign, match_modules, parse_rules

GPU = Device("cuda", 0)
TREE = tiny_tree()


def rules(text: str) -> RuleSet:
    return parse_rules(parse_yaml(text), "r.yaml")


def lines(text: str) -> dict[str, int | None]:
    """module -> line of its rule."""
    found = match_modules(rules(text), TREE)
    return {one.module.name: one.rule.line if one.rule else None for one in found}


def on_cpu(name: str = ".*", extra: str = "") -> str:
    return f"- match: {{name: '{name}'}}\n  replace: {{class: default, kwargs: {{generate_device: cpu}}}}\n{extra}"


def test_the_first_rule_that_matches_wins_and_nothing_is_merged() -> None:
    text = (
        "- match: {name: 'q_proj'}\n  replace: {class: Linear, kwargs: {generate_device: cpu}}\n"
        "- match: {name: 'self_attn'}\n  replace: {class: default, kwargs: {generate_device: cuda, threads: 7}}\n"
    )
    placed = assign(rules(text), TREE)
    assert placed["model.layers.1.self_attn.q_proj"] == Placement(CPU, "auto", CPU, "auto")
    assert placed["model.layers.1.self_attn.kv_b_proj"] == Placement(GPU, "auto", GPU, "auto", threads=7)


def test_names_are_searched_not_matched_whole() -> None:
    found = lines(on_cpu("embed"))
    assert [name for name, line in found.items() if line] == ["model.embed_tokens"]
    assert not any(lines(on_cpu("^embed")).values())


def test_the_root_has_the_empty_name_and_is_walked_first() -> None:
    assert next(iter(lines(on_cpu("^$")).items())) == ("", 1)
    assert [name for name, line in lines(on_cpu("^$")).items() if line] == [""]
    assert all(lines(on_cpu(".*")).values())


def test_a_class_matches_every_alias_and_base_of_a_module() -> None:
    def named(class_name: str) -> set[str]:
        text = f"- match: {{class: {class_name}}}\n  replace: {{class: default, kwargs: {{generate_device: cpu}}}}\n"
        return {name for name, line in lines(text).items() if line}

    linears = named("torch.nn.Linear")
    assert "lm_head" in linears and "model.layers.1.mlp.gate" not in linears
    assert named("torch.nn.modules.linear.Linear") == linears == named("Linear")
    assert named("torch.nn.Module") == {module.name for module in TREE.walk()}
    moe = {"model.layers.1.mlp", "model.layers.2.mlp"}
    assert named("ktransformers.models.modeling_deepseek.DeepseekV2MoE") == moe == named("MoE")
    assert named("transformers.models.deepseek_v2.modeling_deepseek_v2.DeepseekV2MoE") == moe
    # The same last name in another model's file is another class.
    assert named("ktransformers.models.modeling_deepseek.MoEGate")
    assert not named("ktransformers.models.modeling_deepseek_v3.MoEGate")


def test_name_and_class_must_both_hold() -> None:
    text = (
        "- match: {name: 'layers.1', class: torch.nn.Linear}\n"
        "  replace: {class: Linear, kwargs: {generate_device: cpu}}\n"
    )
    found = [name for name, line in lines(text).items() if line]
    assert found == ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.kv_b_proj"]


def test_children_do_not_inherit() -> None:
    placed = assign(rules(on_cpu(r"^model\.layers\.1\.self_attn$")), TREE)
    assert placed["model.layers.1.self_attn"].generate_device == CPU
    assert placed["model.layers.1.self_attn.q_proj"].generate_device == GPU  # the dialect's default


def test_recursive_false_closes_the_subtree_and_places_it_like_its_top() -> None:
    text = on_cpu(r"^model\.layers\.1$", "  recursive: false\n") + (
        "- match: {name: 'q_proj'}\n  replace: {class: Linear, kwargs: {generate_device: cuda, threads: 3}}\n"
    )
    placed, found = assign(rules(text), TREE), lines(text)
    assert found["model.layers.1.self_attn.q_proj"] == 1 and found["model.layers.2.self_attn.q_proj"] == 4
    assert placed["model.layers.1.self_attn.q_proj"] == placed["model.layers.1"]
    above = {one.module.name: one.above for one in match_modules(rules(text), TREE)}
    assert above["model.layers.1.self_attn.q_proj"] == "model.layers.1"
    assert above["model.layers.1"] is None and above["model.layers.2.self_attn.q_proj"] is None


# KTransformers' prefill_* is used in layer-wise prefill.
LAYER_WISE = (
    "- match: {name: '^model$'}\n  replace:\n    class: ktransformers.operators.models.KDeepseekV2Model\n"
    "    kwargs: {per_layer_prefill_intput_threshold: 1000}\n"
)


def test_what_no_rule_matches_takes_the_default_of_the_dialect_or_of_the_caller() -> None:
    assert assign(rules(on_cpu("lm_head")), TREE)["model.norm"] == Placement(GPU, "auto", GPU, "auto")
    native = rules("kbench: 1\nrules:\n" + on_cpu("lm_head"))
    assert assign(native, TREE)["model.norm"] == Placement()
    mine = Placement(threads=5)
    assert assign(native, TREE, mine)["model.norm"] == mine


@pytest.mark.parametrize(
    ("replace", "expected"),
    [
        # KTransformers' operators, with what their constructors take by default.
        ("ktransformers.operators.linear.KTransformersLinear", Placement(GPU, "marlin", GPU, "torch")),
        (
            "ktransformers.operators.linear.KTransformersLinear, kwargs: "
            "{generate_device: cpu, generate_op: KLinearCPUInfer, out_device: cpu}",
            Placement(CPU, "auto", GPU, "torch", CPU),
        ),
        (
            "ktransformers.operators.linear.KTransformersLinear, kwargs: "
            "{generate_device: 'cuda:1', generate_op: VLinearMarlin, prefill_device: 'cuda:1'}",
            Placement(Device("cuda", 1), "marlin", Device("cuda", 1), "torch"),
        ),
        # kbench's: silence means "as in decode", and "the default's device, its best implementation".
        ("Linear", Placement(GPU, "auto", GPU, "auto")),
        ("Linear, kwargs: {generate_device: cpu}", Placement(CPU, "auto", CPU, "auto")),
        ("Linear, kwargs: {generate_op: cpu.avx2}", Placement(CPU, "cpu.avx2", CPU, "cpu.avx2")),
        ("Linear, kwargs: {generate_device: cpu, generate_op: cpu}", Placement(CPU, "auto", CPU, "auto")),
        (
            "Linear, kwargs: {generate_device: cpu, generate_op: cpu.avx2, prefill_device: cuda}",
            Placement(CPU, "cpu.avx2", GPU, "auto"),
        ),
        (
            "Linear, kwargs: {generate_device: cpu, prefill_op: triton, threads: 4, block: {rows: 8}}",
            Placement(CPU, "auto", GPU, "triton", None, 4, {"rows": 8}),
        ),
    ],
)
def test_kwargs_become_a_placement(replace: str, expected: Placement) -> None:
    text = f"- match: {{name: '^lm_head$'}}\n  replace: {{class: {replace}}}\n"
    assert assign(rules(text + LAYER_WISE), TREE)["lm_head"] == expected


def test_without_layer_wise_prefill_ktransformers_files_prefill_as_they_decode() -> None:
    text = "- match: {name: '^lm_head$'}\n  replace: {class: ktransformers.operators.linear.KTransformersLinear}\n"
    for off in ("", LAYER_WISE.replace("1000", "0")):
        assert assign(rules(text + off), TREE)["lm_head"] == Placement(GPU, "marlin", GPU, "marlin")
    for spelling in ("intput", "input"):
        on = rules(text + LAYER_WISE.replace("intput", spelling))
        assert on.prefill_threshold == 1000
        assert assign(on, TREE)["lm_head"] == Placement(GPU, "marlin", GPU, "torch")


def test_experts_of_ktransformers_decode_on_the_cpu_by_default() -> None:
    text = (
        "- match: {name: 'experts$'}\n"
        "  replace: {class: ktransformers.operators.experts.KTransformersExperts}\n  recursive: false\n"
    )
    found = assign(rules(text + LAYER_WISE), TREE)["model.layers.1.mlp.experts"]
    assert found == Placement(CPU, "auto", GPU, "torch", GPU)


def test_no_prefill_op_means_prefill_as_decode() -> None:
    text = (
        "- match: {name: 'experts$'}\n  replace:\n    class: ktransformers.operators.experts.KTransformersExpertsV2\n"
        "    kwargs: {generate_device: cpu, generate_op: KExpertsCPU, prefill_op: None, out_device: cuda}\n"
    )
    assert assign(rules(text), TREE)["model.layers.1.mlp.experts"] == Placement(CPU, "auto", CPU, "auto", GPU)


def test_a_file_with_errors_is_refused_with_all_of_them() -> None:
    text = (
        "- match: {name: '('}\n  replace: {class: Linear}\n- match: {name: x}\n  replace: {class: Lineer}\n"
        "- match: {name: x}\n  replace: {class: Linear, kwargs: {generate_op: marlim}}\n"
    )
    with pytest.raises(UserError) as caught:
        assign(rules(text), TREE)
    assert [line.partition(": ")[0] for line in caught.value.message.splitlines()] == [
        "r.yaml:1",
        "r.yaml:4",
        "r.yaml:6",
    ]


def test_somebodys_own_operator_needs_trust_and_is_not_imported() -> None:
    text = "- match: {name: lm_head}\n  replace: {class: my_ops.Head, kwargs: {generate_device: cpu, colour: blue}}\n"
    with pytest.raises(UserError, match="--trust my_ops"):
        assign(rules(text), TREE)
    trusted = parse_rules(parse_yaml(text), trust=["my_ops"])  # there is no such package: importing it would fail
    own = Placement(CPU, "my_ops.Head", CPU, "my_ops.Head", kwargs={"colour": "blue"})
    assert assign(trusted, TREE)["lm_head"] == own
    with pytest.raises(UserError, match="unknown operator"):
        assign(parse_rules(parse_yaml(text), trust=["my"]), TREE)
