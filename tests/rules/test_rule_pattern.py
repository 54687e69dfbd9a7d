"""Name patterns: what is refused, and that what is not refused stays quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbench.core import parse_yaml
from kbench.rules import parse_rules
from kbench.rules.pattern import MAX_FILE_WAYS, MAX_PATTERN, PatternError, compile_name, count_ways

NAME = "model.layers.59.self_attn.kv_a_proj_with_mqa"


@pytest.mark.parametrize(
    "text",
    [
        r"^model\.layers\.(?!.*self_attn\.kv_b_proj).*$",
        r"^model\.layers\.([3456][0-9])\.(?!self_attn\.kv_b_proj).*$",
        r"(^model\.layers\.(4[5-9]|5[0-9]|60)\.)|(^model\.norm)",
        r"^model\.layers\..*\.mlp\.(experts|shared_experts)(\.gate_proj)?$",
        r"(a.*|b.*|c.*)|(d.*|e.*|f.*)",  # alternatives do not add up
        r"[0-9]{1,3}\.[^]a]*x{2}",
        r"(?i)MODEL(?#a (comment)x{}",
        r"(?P<layer>[0-9]+)\.(?:mlp|attn)",
        r"^(?!.*kv_b_proj)(?!.*gate.*up).*\.mlp\..*$",  # nor do looks ahead
        "",
    ],
)
def test_patterns_of_real_files_are_accepted(text: str) -> None:
    assert compile_name(text).pattern == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(a+)+$", "repeats a part of varying length"),
        ("(a|a)*$", "repeats a part of varying length"),
        ("(a?){30}", "repeats a part of varying length"),
        ("((ab?c)x){2,}", "repeats a part of varying length"),
        (".*" * 4, "4 repeats"),
        ("(.*(.*(.*(.*(.*)))))", "5 repeats"),
        (".*a.*(?!.*b.*)", "4 repeats"),
        ("a?" * 5, "5 optional"),
        ("a" * (MAX_PATTERN + 1), f"{MAX_PATTERN + 1} characters"),
        ("a{99999999999999999999}", "no usable regular expression"),
        ("(" * 500 + ")" * 500, "no"),
        ("[a", "unterminated character set"),
        ("*a", "nothing to repeat at character 1"),
        (r"a\1", "invalid group reference"),
        ("(?x) a #[\n (a+)+ #]", "flag x"),
        ("(?x: a #[\n (a+)+ #]\n)", "flag x"),
    ],
)
def test_patterns_that_could_explode_are_refused(text: str, told: str) -> None:
    with pytest.raises(PatternError) as caught:
        compile_name(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(?:.|[a-z._0-9])" * 40 + "X", "combinations of alternatives"),
        ("(?:(?:a|.)(?:b|.)){1}" * 20 + "X", "combinations of alternatives"),
        ("(?:){1000000000}", "counts to"),
        (r"(?:(?:\b){999}){999}", "counts to"),
        (r"(?:(?:x\b){0,999}y){999}", "counts to|varying length"),
    ],
)
def test_alternatives_and_counts_that_could_explode_are_refused(text: str, told: str) -> None:
    with pytest.raises(PatternError, match=told):
        compile_name(text)


def test_the_worst_pattern_that_is_accepted_ends() -> None:
    # In a process of its own: a pattern that explodes cannot be interrupted from within.
    worst = ".*" * 3 + "a?" * 4 + "z$"
    code = f"from kbench.rules.pattern import compile_name; assert not compile_name({worst!r}).search({NAME!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("^lm_head$", 1),
        (r"^layers\.([1-9]|[1-5][0-9]|60)\.", 2),  # of the three, 1 begins two, and 6 others
        (r"(q_proj|k_proj|v_proj)", 1),
        (r"^(q_a|q_b|\.)", 2),
        (r"(?i)(a|A|b)", 92),
        ("^(|a)b", 2),
        ("^(.|a)(.|b)", 4),
        ("^.*", 46),
        (".*", 46 * 47 // 2),  # from each character on
        ("^a?b?", 4),
        ("a?b?", 4 * 46),
    ],
)
def test_ways_are_counted_by_what_alternatives_begin_with(text: str, ways: int) -> None:
    compile_name(text)
    assert count_ways(text) == ways


def test_a_files_patterns_together_are_bounded() -> None:
    """Each alone is accepted; thousands of them would keep the matcher busy for minutes."""
    worst = ".*a.*b.*c"
    each = count_ways(worst)
    n_accepted = MAX_FILE_WAYS // each
    text = "".join(f"- match: {{name: '{worst}{i}'}}\n  replace: {{class: Linear}}\n" for i in range(n_accepted + 9))
    found = parse_rules(parse_yaml(text), "r.yaml").findings
    assert [(one.code, one.line) for one in found] == [("slow-patterns", 2 * n_accepted + 1)]
    assert n_accepted > 5
    many = "".join(
        f"- match: {{name: '^model\\.layers\\.{i}\\..*$'}}\n  replace: {{class: default}}\n" for i in range(4000)
    )
    assert parse_rules(parse_yaml(many), "r.yaml").findings == ()
