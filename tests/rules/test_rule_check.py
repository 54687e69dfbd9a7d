"""The catalogue of mistakes: what a file with one says, word for word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from rule_trees import tiny_tree

from kbench.core import CPU, Block, Device, UserError, parse_yaml
from kbench.rules import Finding, assign, check, parse_rules

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
# What nearly every file of one rule earns besides; these have tests of their own below.
BACKGROUND = {"unmatched", "embedding-on-gpu", "device-flow"}

CATALOGUE = (Path(__file__).parent / "fixtures" / "mistakes.txt").read_text(encoding="utf-8")


def mistakes() -> Iterator[object]:
    """The catalogue's entries: file and expected lines."""
    for entry in re.split(r"^=== ", CATALOGUE, flags=re.MULTILINE)[1:]:
        name, _, rest = entry.partition("\n")
        text, *expected = re.split(r"^=> ", rest.rstrip("\n") + "\n", flags=re.MULTILINE)
        yield pytest.param(text, [line.strip() for line in expected], id=name)


def findings(text: str, **options: object) -> list[Finding]:
    rules = parse_rules(parse_yaml(text), "r.yaml", trust=["trusted_package"])
    return check(rules, tiny_tree(), **options)  # type: ignore[arg-type]


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


@pytest.mark.parametrize(("text", "expected"), mistakes())
def test_mistake(text: str, expected: list[str]) -> None:
    found = findings(text, devices={CPU, GPU, GPU1})
    told = [f"{one.severity} {one.code} {one}" for one in found if f" {one.code} " in "".join(expected)]
    assert told == expected
    # What is left out above is only what nearly every file of one rule earns.
    assert {one.code for one in found} - {line.split()[1] for line in expected} <= BACKGROUND


def test_the_catalogue_is_read_whole() -> None:
    assert len(list(mistakes())) == CATALOGUE.count("\n=== ") > 50


def test_no_mistake_no_finding() -> None:
    text = "- match: {name: embed_tokens}\n  replace: {class: default, kwargs: {generate_device: cpu}}\n"
    text += "- match: {name: ''}\n  replace: {class: default, kwargs: {generate_device: cuda}}\n"
    assert findings(text, devices={CPU, GPU}) == []
    assert check(parse_rules(parse_yaml(text))) == []


def test_strict_makes_errors_of_warnings_only() -> None:
    text = "- match: {name: nowhere}\n  replace: {class: Attention, kwargs: {chunck_size: 1000}}\n"
    by_code = {finding.code: finding.severity.value for finding in findings(text)}
    assert by_code["never-matches"] == "warning" and by_code["inert-kwarg"] == "info"
    by_code = {finding.code: finding.severity.value for finding in findings(text, strict=True)}
    assert by_code["never-matches"] == "error" and by_code["inert-kwarg"] == "info"


def test_without_a_tree_everything_else_is_still_found() -> None:
    text = "- match: {name: nowhere, class: torch.nn.Linera}\n  replace: {class: Linear, kwargs: {threads: many}}\n"
    assert codes(check(parse_rules(parse_yaml(text)))) == ["unknown-class", "bad-value"]


def test_modules_without_a_rule_are_counted() -> None:
    text = "- match: {name: lm_head}\n  replace: {class: Linear}\n"
    (found,) = [one for one in findings(text) if one.code == "unmatched"]
    assert found.severity == "info"
    assert found.found.startswith("16 modules such as model.embed_tokens with ")
    assert found.found.endswith("take the default placement: cuda:0")


def test_ktransformers_wants_the_embedding_on_the_cpu() -> None:
    text = "- match: {name: '.*'}\n  replace: {class: default, kwargs: {generate_device: cuda}}\n"
    (found,) = findings(text)
    assert (found.severity, found.code, found.line) == ("warning", "embedding-on-gpu", 2)
    native = "kbench: 1\nrules:\n" + text
    assert findings(native) == []


def test_modules_off_the_path_of_the_hidden_state() -> None:
    text = (
        "- match: {name: embed_tokens}\n  replace: {class: default, kwargs: {generate_device: cpu}}\n"
        "- match: {name: 'layers\\.[12]\\.|norm'}\n  replace: {class: default, kwargs: {generate_device: 'cuda:1'}}\n"
        "- match: {name: '^model$'}\n  replace:\n    class: ktransformers.operators.models.KDeepseekV2Model\n"
        "    kwargs: {transfer_map: {1: 'cuda:1'}}\n"
    )
    found = [finding for finding in findings(text) if finding.code == "device-flow"]
    assert [(finding.severity, finding.line) for finding in found] == [("error", 1), ("error", 4)]
    assert "lm_head on cuda:0, but the hidden state is on cuda:1" in found[0].found  # no rule puts it there
    assert "model.layers.0.input_layernorm on cuda:1, but the hidden state is on cuda:0" in found[1].found
    assert not [one for one in findings(text.replace("layers\\.[12]\\.|norm", "layers\\.[12]\\.|model.norm|lm_head"))
                if one.code == "device-flow"]  # fmt: skip


def test_layer_wise_prefill_and_several_gpus() -> None:
    text = (
        "- match: {name: 'layers\\.2\\.'}\n  replace: {class: default, kwargs: {generate_device: 'cuda:1'}}\n"
        "- match: {name: '^model$'}\n  replace:\n    class: ktransformers.operators.models.KDeepseekV2Model\n"
        "    kwargs: {transfer_map: {2: 'cuda:1'}, per_layer_prefill_intput_threshold: 1000}\n"
    )
    assert "peer-prefill" in codes(findings(text))
    assert "peer-prefill" not in codes(findings(text.replace("1000", "0")))


def test_quant_types_that_an_implementation_does_not_take() -> None:
    text = (
        "kbench: 1\nrules:\n- match: {name: 'lm_head|q_proj'}\n  replace:\n    class: Linear\n"
        "    kwargs: {generate_device: cuda, generate_op: marlin, prefill_op: auto}\n"
    )

    def can_take(implementation: str, quant: str) -> bool | str:
        return True if (implementation, quant) == ("marlin", "Q4_K") else "no kernel for it"

    (found,) = [one for one in findings(text, can_take=can_take) if one.code == "quant"]
    assert str(found) == (
        "r.yaml:6: rule 1, replace.kwargs.generate_op · marlin does not take Q6_K (lm_head.weight): no kernel for it · "
        "set the op to auto, or match these modules with another rule"
    )
    assert "quant" not in codes(findings(text, can_take=lambda implementation, quant: True))


def test_quant_types_that_ktransformers_cannot_dequantise_on_a_gpu() -> None:
    text = "- match: {name: '.*'}\n  replace: {class: default, kwargs: {generate_device: cuda}}\n"
    rules = parse_rules(parse_yaml(text), "r.yaml")
    (found,) = [one for one in check(rules, tiny_tree(experts_quant="Q4_1")) if one.code == "peer-quant"]
    assert found.found == "KTransformers does not dequantise Q4_1 on a GPU (blk.1.ffn_up_exps.weight and 1 more)"


def test_kernel_parameters_are_judged_by_who_knows_them() -> None:
    text = """- match: {name: lm_head}
  replace:
    class: Linear
    kwargs:
      generate_device: cpu
      generate_op: cpu.avx2
      block:
        planes: 1
        tile: static
"""
    seen = []

    def judge(block: Block, used: Sequence[tuple[str, Device]]) -> Mapping[str, UserError]:
        seen.append((dict(block), list(used)))
        return {"tile": UserError("tile is static", where="elsewhere", accepted="1, 2", todo="did you mean 1?")}

    (found,) = [one for one in findings(text, check_block=judge) if one.code == "block"]
    assert str(found) == (
        "r.yaml:9: rule 1, replace.kwargs.block.tile · tile is static · accepted: 1, 2 · did you mean 1?"
    )
    assert seen == [({"planes": 1, "tile": "static"}, [("cpu.avx2", CPU), ("cpu.avx2", CPU)])]
    rules = parse_rules(parse_yaml(text), "r.yaml")
    with pytest.raises(UserError, match=re.escape(str(found))):
        assign(rules, tiny_tree(), check_block=judge)
    placed = assign(rules, tiny_tree())["lm_head"]
    assert placed.block == {"planes": 1, "tile": "static"}


def test_a_devices_budget_is_held_against_the_weights_put_there() -> None:
    text = (
        "kbench: 1\nrules:\n- match: {name: experts$}\n  replace:\n    class: Experts\n"
        "    kwargs: {generate_device: cpu, prefill_device: cuda}\n"
        "- match: {name: lm_head}\n  replace: {class: Linear, kwargs: {generate_device: cuda}}\n"
    )
    # Two layers of experts of 4 rows of Q4_K (144 bytes each) for both devices; a head of Q6_K (210 bytes a row).
    experts, head = 2 * 4 * 144, 4 * 210
    assert "over-budget" not in codes(findings(text, budgets={GPU: experts + head}))
    (found,) = [one for one in findings(text, budgets={GPU: experts + head - 1}) if one.code == "over-budget"]
    assert str(found) == (
        "r.yaml:6: rule 1, replace.kwargs.generate_device · 1.95 KiB on cuda:0, 1 B over its budget: "
        "weights 1.95 KiB · accepted: at most 1.94 KiB, cache and workspace besides · "
        "this rule puts 1.12 KiB of weights there: move some of its modules"
    )
    (found,) = [one for one in findings(text, budgets={CPU: 100}) if one.code == "over-budget"]
    assert found.line == 1 and "modules that match no rule are" in found.todo


def test_every_operator_of_ktransformers_is_known_or_refused_with_the_nearest() -> None:
    """Names as its modules define them; what kbench lacks has a reason and something that it has."""
    from kbench.rules.operators import OPERATORS, UnknownOperator, operator
    from kbench.rules.refused import REFUSED_CLASSES, REFUSED_OPS

    for name, (why, nearest) in REFUSED_CLASSES.items():
        with pytest.raises(UnknownOperator, match="is not in kbench") as caught:
            operator(f"ktransformers.operators.somewhere.{name}")
        assert why in str(caught.value) and nearest in OPERATORS and caught.value.todo == f"nearest: {nearest}"
    for name in ("ktransformers.operators.ascend.ascend_mlp.KNewMLPW8A8", "a.KSomethingIPEXLLM"):
        with pytest.raises(UnknownOperator, match="is not in kbench"):
            operator(name)
    for name, (why, _) in REFUSED_OPS.items():
        kind = "Experts" if "Experts" in name else "Linear"
        text = f"- match: {{name: x}}\n  replace: {{class: {kind}, kwargs: {{generate_op: {name}}}}}\n"
        (found,) = [one for one in findings(text) if one.code == "refused-op"]
        assert why in found.found and found.todo.startswith("nearest: ")
