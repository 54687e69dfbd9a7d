"""Chat templates: real ones against Hugging Face, hostile ones against the clock."""

from __future__ import annotations

import time

import pytest

from kbench.core import UserError
from kbench.engine import ChatTemplate

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Features that released templates use: namespaces, macros, loop controls, filters, slices, generation blocks.
RICH = """{%- set ns = namespace(n=0, seen='') -%}
{%- macro block(role, text) -%}[{{ role | upper }}] {{ text | trim }}{%- endmacro -%}
{{ bos_token }}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- if m['content'] is not string or not m.content %}{{ raise_exception('content must be text') }}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {%- set ns.seen = ns.seen ~ m.role[0] %}
    {% generation %}{{ block(m.role, m.content.split('</think>')[-1].lstrip('\\n')) }}{% endgeneration %}
    {{- '\\n' }}
{%- endfor %}
{{- ns.n }} {{ ns.seen }} {{ messages[1:] | selectattr('role', 'equalto', 'user') | list | length }}
{{- {'a': [1, 'é<']} | tojson }} {{ '%s' if false else 'x' }} {{ eos_token | default('none', true) }}
"""
TALK = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <|im_end|> ünïcode"},
    {"role": "assistant", "content": "<think>hm</think>\n\nHello!"},
    {"role": "user", "content": "Bye"},
]


@pytest.mark.parametrize("source", [CHATML, RICH])
@pytest.mark.parametrize("talk", [TALK, TALK[1:2]])
@pytest.mark.parametrize("prompt", [True, False])
def test_it_renders_what_hugging_face_renders(source: str, talk: list[dict[str, str]], prompt: bool) -> None:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered, _ = utilities.render_jinja_template(
        conversations=[talk], chat_template=source, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )
    ours = ChatTemplate(source, bos="<s>", eos="</s>").render(talk, add_generation_prompt=prompt)
    assert ours == rendered[0]


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate.from_metadata({}) is None


def test_a_template_may_refuse_a_conversation_in_its_own_words() -> None:
    with pytest.raises(UserError, match="content must be text"):
        ChatTemplate(RICH).render([{"role": "user", "content": ""}])


@pytest.mark.parametrize("source", ["{% for x in %}", "{{ a", "{% nonsense %}"])
def test_a_broken_template_is_named_with_its_line(source: str) -> None:
    with pytest.raises(UserError) as caught:
        ChatTemplate("\n\n" + source)
    assert caught.value.where.startswith("tokenizer.chat_template:3")


def test_an_enormous_template_is_not_compiled() -> None:
    with pytest.raises(UserError, match="characters"):
        ChatTemplate("x" * (1 << 20))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ strftime_now.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ 'a'.format.__self__ }}",
        "{{ lipsum.__globals__ }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'a': 1}) %}",
        "{% include 'x' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% extends 'x' %}",
    ],
)
def test_there_is_no_way_out(source: str) -> None:
    with pytest.raises(UserError):
        text = ChatTemplate(source).render([{"role": "user", "content": "x"}])
        # An undefined attribute renders as nothing: that is no way out either.
        if text == "":
            raise UserError("nothing")
        pytest.fail(f"rendered {text!r}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 9999999 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('a', ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
        "{% set ns = namespace(n=10) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x'|format(1) }}",
        "{% for i in range(90000) %}{{ 'a' * 90000 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_hunger_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbench.engine.chat_template.MAX_SECONDS", 0.3)
    started = time.monotonic()
    with pytest.raises(UserError):
        text = ChatTemplate(source).render([{"role": "user", "content": "x"}])
        if len(text) < 100:  # what is not there renders as nothing
            raise UserError("nothing")
    # No timing promise: only that it ended, and not by luck after minutes.
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "step",
    [
        "{% set ns.x = [ns.x, ns.x] %}",
        "{% set ns.x = (ns.x, ns.x) %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
        "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
        "{{ keep(ns.x, ns.x) }}",
        "{% set ns.x = [ns.x] * 2 %}",
    ],
)
def test_lists_of_the_same_list_are_stopped_before_they_are_printed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbench.engine.chat_template.MAX_TEXT_CHARS", 1 << 16)  # reached sooner than the time's limit
    # 40 doublings are 40 small objects and a text of 10^12 characters, made in one call that nothing can interrupt.
    macro = "{% set ns = namespace(x=[]) %}{% macro keep() %}{% set ns.x = varargs %}{% endmacro %}"
    template = ChatTemplate(macro + "{% for i in range(40) %}" + step + "{% endfor %}{{ ns.x | length }}")
    with pytest.raises(UserError, match="was stopped: it builds a text of more than 65536"):
        template.render([])


@pytest.mark.parametrize("words", ["+1" * 60_000, "|trim" * 20_000, " + '}}' + 1" * 10_000])
def test_a_tag_that_would_take_long_to_compile_is_refused(words: str) -> None:
    with pytest.raises(UserError, match="tags are too long"):
        ChatTemplate("{{ 1" + words + " }}")
    tags = "{{ 1" + "+1" * 10 + " }}"
    assert ChatTemplate(tags * 500).render([]) == "11" * 500  # many tags are no matter


@pytest.mark.parametrize(
    "source",
    [
        "{{ ([[0]] * 9) | sum(start=[]) }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(30) %}{% set a %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = a %}{% endfor %}{{ ns.x | length }}",
        "{{ (['a' * 4000000] * 4000) | length }}",
    ],
)
def test_large_values_are_stopped_where_they_are_made(source: str) -> None:
    with pytest.raises(UserError):
        ChatTemplate(source).render([])


def test_literals_and_sums_still_work() -> None:
    source = (
        "{% for a, b in [(1, 2)] %}{% set c, d = b, a %}{{ c }}{{ d }}{% endfor %}{{ [1, 2] | sum }}{{ {'k': [3]} }}"
    )
    assert ChatTemplate(source).render([]) == "213{'k': [3]}"
