"""The rule file: a list of rules as KTransformers reads it, or that list inside kbench's own mapping.

```yaml
kbench: 1                     # the version of this form
provenance: {model: ..., ...} # where the rules came from; plain data
rules:
- match: {name: "^lm_head$", class: torch.nn.Linear}   # one or both
  replace: {class: Linear, kwargs: {generate_device: cpu}}
  recursive: true
```
Reading collects every mistake; nothing in a file is imported or run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kbench.core import Device, Lines, Placement, did_you_mean, load_yaml

from .finding import ERROR, WARNING, Finding, Severity
from .pattern import LEAST_WAYS, MAX_FILE_WAYS, PatternError, compile_name, count_ways

VERSION = 1
DEFAULT = "default"

# Prompts longer than this prefill layer by layer: as KTransformers spells it, and the right spelling.
THRESHOLDS = ("per_layer_prefill_intput_threshold", "per_layer_prefill_input_threshold")

_TOP_KEYS = ("kbench", "provenance", "rules")
_RULE_KEYS = ("match", "replace", "recursive")
_MATCH_KEYS = ("name", "class")
_REPLACE_KEYS = ("class", "kwargs")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``kwargs`` is None where the file gives none; ``number`` counts from 1.

    ``lines`` holds the line of each part by its dotted path, e.g. ``replace.kwargs.generate_op``.
    """

    match_name: str | None = None
    match_class: str | None = None
    replace_class: str = DEFAULT
    kwargs: Mapping[str, Any] | None = None
    recursive: bool = True
    line: int = 0
    number: int = 0
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    def line_of(self, part: str) -> int:
        """The line of ``part``, or of what holds it."""
        while part:
            if part in self.lines:
                return self.lines[part]
            part = part.rpartition(".")[0]
        return self.line

    def pattern(self) -> re.Pattern[str] | None:
        """The compiled ``match.name``."""
        return None if self.match_name is None else _compiled(self.match_name)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> re.Pattern[str]:
    return compile_name(text)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A rule file. ``native``: in kbench's mapping form. ``trust``: packages whose operators a rule may name.

    ``findings`` are the mistakes of form that reading found.
    """

    path: str
    rules: tuple[Rule, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    native: bool = False
    findings: tuple[Finding, ...] = ()
    trust: frozenset[str] = frozenset()

    @property
    def default_placement(self) -> Placement:
        """Of modules that no rule matches: KTransformers' ``cuda:0``; in kbench's form the CPU."""
        if self.native:
            return Placement()
        return Placement(generate_device=Device("cuda", 0), prefill_device=Device("cuda", 0))

    @property
    def is_kt(self) -> bool:
        """Whether KTransformers could read the file: a bare list, and no operator by a registry name."""
        own = [rule for rule in self.rules if "." not in rule.replace_class and rule.replace_class != DEFAULT]
        return not self.native and not own

    @property
    def prefill_threshold(self) -> int:
        """Prompts longer than this prefill layer by layer, in either spelling; 0: none does."""
        found = (rule.kwargs.get(key) for rule in self.rules if rule.kwargs for key in THRESHOLDS)
        numbers = [value for value in found if isinstance(value, int) and not isinstance(value, bool)]
        return max(numbers, default=0)

    @property
    def prefills_as_decode(self) -> bool:
        """KTransformers uses ``prefill_device`` and ``prefill_op`` in layer-wise prefill only."""
        return self.is_kt and self.prefill_threshold <= 0

    def finding(
        self, code: str, severity: Severity, rule: Rule, part: str, found: str, accepted: str = "", todo: str = ""
    ) -> Finding:
        """A finding about ``part`` of ``rule``."""
        where = f"rule {rule.number}, {part}" if part else f"rule {rule.number}"
        return Finding(code, severity, self.path, rule.line_of(part), where, found, accepted, todo)


def read_rules(path: Path | str, *, trust: Iterable[str] = ()) -> RuleSet:
    """Reads a rule file and keeps its mistakes of form in ``findings``.

    Raises:
        UserError: the file cannot be read or is no YAML.
    """
    return parse_rules(load_yaml(path), str(path), trust=trust)


def parse_rules(document: Any, path: str = "<rules>", *, trust: Iterable[str] = ()) -> RuleSet:
    """Like ``read_rules`` for a document that ``core.parse_yaml`` made."""
    reader = _Reader(path)
    rules = reader.document(document)
    return RuleSet(path, rules, reader.provenance, reader.native, tuple(reader.findings), frozenset(trust))


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.native = False
        self.provenance: Mapping[str, Any] = {}
        self.findings: list[Finding] = []
        self.n_ways = 0  # of all patterns so far

    def add(self, code: str, line: int, where: str, found: str, accepted: str = "", todo: str = "") -> None:
        self.findings.append(Finding(code, ERROR, self.path, line, where, found, accepted, todo))

    def document(self, document: Any) -> tuple[Rule, ...]:
        form = "a list of rules, or a mapping with kbench, provenance and rules"
        if document is None:
            self.add("empty-file", 1, "file", "empty", form)
            return ()
        if isinstance(document, list):
            return self.rules(document, 1)
        if not isinstance(document, Lines):
            self.add("not-rules", 1, "file", f"{_kind(document)}", form)
            return ()
        if "match" in document or "replace" in document:
            self.add("not-rules", document.line, "file", "a single rule", form, 'put "- " before it')
            return ()
        self.native = True
        self.unknown_keys(document, _TOP_KEYS, "file", "")
        version = document.get("kbench")
        if version is None:
            self.add("no-version", document.line, "file", "no key kbench", f"kbench: {VERSION}")
        elif version != VERSION or isinstance(version, bool):
            todo = "a newer kbench wrote it: upgrade" if isinstance(version, int) and version > VERSION else ""
            self.add("version", document.line_of("kbench"), "kbench", f"version {version!r}", str(VERSION), todo)
        provenance = document.get("provenance")
        if isinstance(provenance, Lines):
            self.provenance = provenance.plain()
        elif provenance is not None:
            self.add("provenance", document.line_of("provenance"), "provenance", _kind(provenance), "a mapping")
        rules = document.get("rules")
        if isinstance(rules, list):
            return self.rules(rules, document.line_of("rules"))
        if "rules" in document:
            self.add("not-rules", document.line_of("rules"), "rules", _kind(rules), "a list of rules")
        else:
            self.add("no-rules", document.line, "file", "no key rules", "rules: a list of rules")
        return ()

    def rules(self, items: list[Any], line: int) -> tuple[Rule, ...]:
        if not items:
            self.findings.append(Finding("no-rules", WARNING, self.path, line, "rules", "no rule in the list"))
        found = []
        for number, item in enumerate(items, start=1):
            if isinstance(item, Lines):
                line = item.line
                rule = self.rule(item, number)
                if rule is not None:
                    found.append(rule)
            else:
                self.add("not-a-rule", line, f"rule {number}", _kind(item), "a mapping with match and replace")
        return tuple(found)

    def rule(self, item: Lines, number: int) -> Rule | None:
        """The rule, or None where it has no usable match."""
        where = f"rule {number}"
        lines = dict(_lines(item, ""))
        self.unknown_keys(item, _RULE_KEYS, where, "")
        name, class_ = self.match(item, where)
        class_name, kwargs = self.replace(item, where)
        recursive = self.recursive(item, where)
        if name is None and class_ is None:
            return None
        return Rule(name, class_, class_name, kwargs, recursive, item.line, number, lines)

    def match(self, item: Lines, where: str) -> tuple[str | None, str | None]:
        match, accepted = item.get("match"), "name (a regular expression), class (a dotted class name), or both"
        if not isinstance(match, Lines):
            found = "no match" if "match" not in item else f"match is {_kind(match)}"
            self.add("no-match", item.line_of("match"), where, found, f"match with {accepted}")
            return None, None
        line = match.line
        self.unknown_keys(match, _MATCH_KEYS, f"{where}, match", "match")
        if not any(key in match for key in _MATCH_KEYS):
            self.add("empty-match", line, f"{where}, match", "neither name nor class", accepted)
            return None, None
        texts: dict[str, str | None] = dict.fromkeys(_MATCH_KEYS)
        broken = False
        for key in _MATCH_KEYS:
            value, part = match.get(key), f"{where}, match.{key}"
            if key not in match:
                continue
            if not isinstance(value, str) or (key == "class" and not value):
                self.add("match-type", match.line_of(key), part, _kind(value), "text")
                broken = True
                continue
            texts[key] = value
            if key == "name":
                try:
                    _compiled(value)
                    before, self.n_ways = self.n_ways, self.n_ways + max(LEAST_WAYS, count_ways(value))
                    if before <= MAX_FILE_WAYS < self.n_ways:  # told once
                        found = "with this pattern the file's could take minutes to match"
                        accepted = f"{MAX_FILE_WAYS} ways to match in a file; fewer parts such as .* make fewer"
                        self.add("slow-patterns", match.line_of(key), part, found, accepted)
                    broken |= self.n_ways > MAX_FILE_WAYS
                except PatternError as error:
                    todo = "check its brackets and escapes" if "no regular" in str(error) else ""
                    self.add("bad-regex", match.line_of(key), part, str(error), error.accepted, todo)
                    broken = True
        return (None, None) if broken else (texts["name"], texts["class"])

    def replace(self, item: Lines, where: str) -> tuple[str, Mapping[str, Any] | None]:
        replace, accepted = item.get("replace"), "replace with class and kwargs"
        if not isinstance(replace, Lines):
            found = "no replace" if "replace" not in item else f"replace is {_kind(replace)}"
            self.add("no-replace", item.line_of("replace"), where, found, accepted)
            return DEFAULT, {}
        self.unknown_keys(replace, _REPLACE_KEYS, f"{where}, replace", "replace")
        class_name = replace.get("class", DEFAULT)
        if not isinstance(class_name, str) or not class_name:
            line = replace.line_of("class")
            self.add("class-type", line, f"{where}, replace.class", _kind(class_name), "an operator's name")
            class_name = DEFAULT
        kwargs = replace.get("kwargs")
        if kwargs is not None and not isinstance(kwargs, Lines):
            line = replace.line_of("kwargs")
            self.add("kwargs-type", line, f"{where}, replace.kwargs", _kind(kwargs), "a mapping")
            return class_name, {}
        return class_name, kwargs

    def recursive(self, item: Lines, where: str) -> bool:
        value = item.get("recursive", True)
        if isinstance(value, bool):
            return value
        line, found = item.line_of("recursive"), _kind(value)
        todo = "write it without quotes: KTransformers takes any text for true" if isinstance(value, str) else ""
        self.add("recursive-type", line, f"{where}, recursive", found, "true or false", todo)
        return bool(value)

    def unknown_keys(self, mapping: Lines, known: tuple[str, ...], where: str, level: str) -> None:
        for key in mapping:
            if key not in known:
                todo = _misplaced(str(key), level) or did_you_mean(str(key), known)
                self.add("unknown-key", mapping.line_of(key), where, f"unknown key {key!r}", ", ".join(known), todo)


def _misplaced(key: str, level: str) -> str:
    """What to do with a key that is right one level away."""
    if level and key in _RULE_KEYS:
        return f"move {key} out of {level}: it stands beside match and replace"
    if level == "replace" and key == "device":
        return "put generate_device and prefill_device under kwargs"
    if level == "replace" and key in ("generate_device", "generate_op", "prefill_device", "prefill_op", "out_device"):
        return f"put {key} under kwargs"
    if not level and key in _MATCH_KEYS + _REPLACE_KEYS:
        return f"put {key} under {'match' if key == 'name' else 'replace' if key == 'kwargs' else 'match or replace'}"
    return ""


def _kind(value: Any) -> str:
    """What a value of the wrong kind is, in YAML's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:37]!r}..."
    if isinstance(value, (Lines, dict)):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"{value!r}"


def _lines(mapping: Lines, prefix: str) -> Iterable[tuple[str, int]]:
    for key in mapping:
        yield f"{prefix}{key}", mapping.line_of(key)
        if isinstance(mapping[key], Lines):
            yield from _lines(mapping[key], f"{prefix}{key}.")
