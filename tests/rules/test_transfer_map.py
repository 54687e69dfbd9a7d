"""What follows the hidden state where a transfer_map sends it."""

from __future__ import annotations

from rule_trees import tiny_tree

from kbench.core import CPU, Device, Phase, Placement, parse_yaml
from kbench.rules import assign, check, explain, hidden_state, parse_rules

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
NATIVE = "kbench: 1\nrules:\n- match: {name: '^model$'}\n  replace: {class: Model, kwargs: {transfer_map: {%s}}}\n"


def placed(text: str, default: Placement | None = None) -> dict[str, Placement]:
    return assign(parse_rules(parse_yaml(text), "r.yaml"), tiny_tree(), default)


def test_modules_without_a_rule_run_where_the_hidden_state_is() -> None:
    found = placed(NATIVE % "1: 'cuda:0', 2: 'cuda:1'")
    assert {name: one.generate_device for name, one in found.items()} == {
        name: GPU1
        if ".layers.2" in name or name in ("model.norm", "lm_head")
        else GPU
        if ".layers.1" in name
        else CPU  # before the map's first layer, and the embedding
        for name in found
    }
    assert all(one.prefill_device == one.generate_device for one in found.values())


def test_a_rule_goes_before_the_map_and_one_without_a_device_follows_it() -> None:
    text = NATIVE % "1: 'cuda:1'"
    text += "- match: {name: 'layers\\.[01]\\..*experts$'}\n  replace: {kwargs: {generate_device: cpu}}\n"
    text += "- match: {name: 'q_proj$'}\n  replace: {kwargs: {generate_op: torch, threads: 3}}\n"
    found = placed(text)
    assert found["model.layers.1.mlp.experts"].generate_device == CPU
    assert found["model.layers.2.mlp.experts"].generate_device == GPU1
    q = [found[f"model.layers.{layer}.self_attn.q_proj"] for layer in (0, 1)]
    assert [(one.generate_device, one.generate_op, one.threads) for one in q] == [(CPU, "torch", 3), (GPU1, "torch", 3)]


def test_an_op_that_the_device_has_not_becomes_auto() -> None:
    found = placed(NATIVE % "1: 'cuda:1'", Placement(generate_op="cpu.avx2", prefill_op="torch"))
    one = found["model.layers.1.self_attn.q_proj"]
    assert (one.generate_op, one.prefill_op) == ("auto", "torch")
    assert found["model.layers.0.self_attn.q_proj"].generate_op == "cpu.avx2"


def test_only_the_map_of_the_rule_that_places_the_model_counts() -> None:
    text = NATIVE % "1: 'cuda:1'"
    text = text.replace("rules:\n", "rules:\n- match: {name: '^model$'}\n  replace: {class: Model}\n")
    assert {one.generate_device for one in placed(text).values()} == {CPU}
    found = placed(NATIVE % "7: 'cuda:1'")  # no such layer: check says so
    assert {one.generate_device for one in found.values()} == {CPU}


def test_explain_names_the_map_and_the_way_of_the_hidden_state() -> None:
    text = NATIVE.replace("{class: Model, kwargs: {transfer_map: {%s}}}", "\n    class: Model\n    kwargs:\n%s")
    rows = explain(parse_rules(parse_yaml(text % "      transfer_map: {1: 'cuda:1'}\n"), "r.yaml"), tiny_tree())
    lines = {row.module: (row.line, row.map_line) for row in rows}
    assert lines["model"] == (3, None) and lines["model.layers.0"] == (None, None)
    assert lines["model.layers.2.input_layernorm"] == lines["lm_head"] == (None, 7)
    assert hidden_state(rows)[Phase.DECODE] == [("0", CPU), ("1-2", GPU1)]


def test_a_map_against_the_layers_is_told_in_either_form() -> None:
    layers = "- match: {name: 'layers\\.1(\\.|$)'}\n  replace: {class: default, kwargs: {generate_device: 'cuda:0'}}\n"
    native = check(parse_rules(parse_yaml(NATIVE % "1: 'cuda:1'" + layers), "r.yaml"), tiny_tree())
    (told,) = [one for one in native if one.code == "device-flow"]
    assert (told.severity, told.line) == ("warning", 6)
    assert "model.layers.1.input_layernorm and 4 more on cuda:0, but the hidden state is on cuda:1 there" in told.found
    peers = (NATIVE % "1: 'cuda:1'" + layers).replace(
        "class: Model", "class: ktransformers.operators.models.KLlamaModel"
    )
    theirs = check(parse_rules(parse_yaml(peers.partition("rules:\n")[2]), "r.yaml"), tiny_tree())
    found = [(one.severity, one.line) for one in theirs if one.code == "device-flow"]
    assert found == [("error", 1), ("error", 4)]  # what has no rule, and what has this one
