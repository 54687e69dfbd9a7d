"""Conversations to prompt text, by the template that a model file carries.

The template is a program that a stranger wrote: it runs in jinja2's sandbox, may call only the string and container
methods that templates need, and is stopped when it runs too long or builds too much.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import psutil
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kbench.core import UserError

# The largest template seen in a released model is under 30 KB.
MAX_TEMPLATE_CHARS = 256 << 10
# jinja2 compiles a ``{{ }}`` or ``{% %}`` in the square of its words: 5 s for 60 000 additions. This many squared words
# of all tags together take some seconds; released templates come to a hundredth.
MAX_SQUARED_WORDS = 8_000_000
# Longer than any context window holds as tokens (4 bytes each, a million tokens).
MAX_TEXT_CHARS = 4 << 20
# A template of a long conversation renders in milliseconds; this leaves room for a busy machine.
MAX_SECONDS = 5.0
# One value is bounded by MAX_TEXT_CHARS; this bounds all that a template keeps. Looked at once in a millisecond.
MAX_MEMORY_BYTES = 256 << 20

_WHERE = "tokenizer.chat_template"

_METHODS = {
    str: "capitalize count endswith find format index isalnum isalpha isdigit isspace isupper islower items join lower "
    "lstrip removeprefix removesuffix replace rfind rindex rsplit rstrip split splitlines startswith strip title upper",
    dict: "get items keys values",
    list: "count index",
    tuple: "count index",
}
_FILTERS = (
    "abs capitalize count d default dictsort escape e first float int items join last length list lower map max min "
    "reject rejectattr replace reverse round safe select selectattr sort string sum title tojson trim unique upper"
)


class _Stop(Exception):
    """A limit was passed."""


def _check_size(n_chars: int) -> None:
    if n_chars > MAX_TEXT_CHARS:
        raise _Stop(f"it builds a text of more than {MAX_TEXT_CHARS} characters")


def _size(*values: Any) -> int:
    """Characters and elements of ``values`` written out: what is shared counts every time, for lists of lists of one
    list are small in memory and endless when printed or compared.

    Raises:
        _Stop: above the limit, however much is left to count.
    """
    n, todo = 0, list(values)
    while todo:
        value = todo.pop()
        n += 1 + (len(value) if isinstance(value, (str, list, tuple, dict)) else 0)
        _check_size(n)
        if isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
    return n


class _Opaque(Namespace):
    """A namespace that is one word when printed: it is filled after it was put somewhere, unseen by ``_size``."""

    def __repr__(self) -> str:
        return "<namespace>"


class _BoundValues(NodeTransformer):
    """Turns ``a ~ b`` into string additions, which the environment's binary-operator hook bounds, and passes lists,
    tuples and dicts that are written down through the filter ``bounded``."""

    def _bounded(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        return nodes.Filter(node, "bounded", [], [], None, None, lineno=node.lineno)

    visit_List = visit_Tuple = visit_Dict = _bounded

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        parts = [nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes]
        total: nodes.Expr = parts[0]
        for part in parts[1:]:
            total = nodes.Add(total, part, lineno=node.lineno)
        return total


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; for a prompt it means nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # The optimizer folds constants in time that grows with the square of an expression: a second for 250 additions.
        extensions = [LoopControlExtension, _GenerationBlock]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        plain = self.filters
        self.filters = {name: plain[name] for name in _FILTERS.split() if name in plain}
        self.filters["replace"] = self._replace
        self.filters["join"] = self._join
        self.filters["indent"] = self._indent
        self.filters["tojson"] = _to_json
        self.filters["bounded"] = self._bounded
        self.filters["sum"] = self._sum
        self.globals["range"] = self._range
        self.globals["namespace"] = _Opaque
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        code: str = super()._generate(_BoundValues().visit(source), *args, **kwargs)
        return code

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names.split()
        return bool(super().is_safe_attribute(obj, attr, value))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("'**' is not available to chat templates")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("'%' formatting is not available to chat templates")
        sizes = [_size(v) for v in (left, right) if isinstance(v, (str, list, tuple))]
        if operator == "+":
            _check_size(sum(sizes))
        elif operator == "*" and sizes:
            count = right if isinstance(right, int) else left
            _check_size(sizes[0] * max(0, count) if isinstance(count, int) else 0)
        if any(isinstance(v, int) and abs(v) > 1 << 64 for v in (left, right)):
            raise _Stop("it computes with enormous numbers")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        name, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(owner, str) and name in ("replace", "join"):
            return (self._replace if name == "replace" else self._join_onto)(owner, *args, **kwargs)
        if isinstance(owner, str) and name == "format":
            raise SecurityError("str.format is not available to chat templates")
        _size(args, kwargs)  # dict(a=x, b=x), and a macro's varargs
        return super().call(context, obj, *args, **kwargs)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What a macro or a ``set`` block builds."""
        parts = list(parts)
        _check_size(sum(map(len, parts)))
        return "".join(parts)

    @staticmethod
    def _bounded(value: Any) -> Any:
        _size(value)
        return value

    @staticmethod
    def _sum(values: Any, attribute: str | None = None, start: int = 0) -> Any:
        """Of numbers: sums of lists take quadratic time."""
        total: Any = start
        for value in values:
            value = value if attribute is None else value[attribute]
            if not isinstance(value, (int, float)) or abs(value) > 1 << 64:
                raise SecurityError("sum is for numbers")
            total += value
        return total

    @staticmethod
    def _range(*bounds: int) -> range:
        numbers = range(*bounds)
        if len(numbers) > 100_000:
            raise _Stop("it loops more than 100000 times")
        return numbers

    @staticmethod
    def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
        whole = str(text)
        _check_size(len(whole) + whole.count(old) * len(new))
        return whole.replace(old, new, -1 if count is None else count)

    @staticmethod
    def _join_onto(separator: str, values: Any) -> str:
        parts = [str(value) for value in values]
        _check_size(sum(map(len, parts)) + len(separator) * len(parts))
        return separator.join(parts)

    @classmethod
    def _join(cls, values: Any, d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            values = [value[attribute] for value in values]
        return cls._join_onto(d, values)

    @staticmethod
    def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(text)
        pad = width if isinstance(width, str) else " " * min(int(width), 256)
        _check_size(len(text) + (text.count("\n") + 1) * len(pad))
        lines = text.split("\n")
        head, tail = lines[0], [pad + line if line or blank else line for line in lines[1:]]
        return "\n".join([pad + head if first else head, *tail])


def _to_json(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as Hugging Face's templates expect it: plain, not HTML-escaped."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=min(indent, 16) if indent else None, separators=separators,
        sort_keys=sort_keys,
    )  # fmt: skip
    _check_size(len(text))
    return text


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message))


def _limited(pieces: Iterator[str], deadline: float) -> str:
    """Joins ``pieces``; a line of the template that starts after ``deadline`` raises ``_Stop``."""

    process = psutil.Process()
    most = process.memory_info().rss + MAX_MEMORY_BYTES
    looked = time.monotonic()

    def watch(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        nonlocal looked
        now = time.monotonic()
        if now > deadline:
            raise _Stop(f"it runs for more than {MAX_SECONDS:g} seconds")
        if now - looked > 1e-3:
            if process.memory_info().rss > most:
                raise _Stop(f"it takes more than {MAX_MEMORY_BYTES >> 20} MiB of memory")
            looked = time.monotonic()
        return None if frame.f_code is _size.__code__ else watch  # bounded by itself, and its lines are many

    parts: list[str] = []
    n_chars = 0
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        for piece in pieces:
            n_chars += len(piece)
            _check_size(n_chars)
            parts.append(piece)
    finally:
        sys.settrace(before)
    return "".join(parts)


def _check_tags(environment: _Environment, source: str) -> None:
    """Raises TemplateSyntaxError for tags that would take long to compile."""
    n_words, squared = 0, 0
    for line, kind, _ in environment.lex(source):
        n_words = 0 if kind in ("data", "variable_begin", "block_begin") else n_words + (kind != "whitespace")
        squared += 2 * n_words - 1 if kind != "whitespace" and n_words else 0
        if squared > MAX_SQUARED_WORDS:
            raise TemplateSyntaxError("its tags are too long: they would take minutes to compile", line)


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Compiles ``source``; ``bos`` and ``eos`` are the texts of these tokens.

        Raises:
            UserError: too long, or no valid template (with the line).
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            raise UserError(
                f"{len(source)} characters", where=_WHERE, accepted=f"at most {MAX_TEMPLATE_CHARS} characters"
            )
        self._names = {
            "bos_token": bos,
            "eos_token": eos,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.datetime.now().strftime(str(form)[:64]),
        }
        try:
            environment = _Environment()
            _check_tags(environment, source)
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            raise UserError(
                f"the model's chat template is not valid: {error}", where=f"{_WHERE}:{line}" if line else _WHERE,
                todo="use --raw and format the prompt yourself",
            ) from None  # fmt: skip

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, bos: str = "", eos: str = "") -> ChatTemplate | None:
        """The template of a GGUF file, or None where it has none."""
        source = metadata.get(_WHERE)
        return cls(str(source), bos=bos, eos=eos) if source else None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **names: Any) -> str:
        """The prompt text of ``messages`` (``{"role": ..., "content": ...}``).

        Raises:
            UserError: the template refuses the conversation, fails, or passes a limit.
        """
        values = {
            **self._names, "messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt,
            **names,
        }  # fmt: skip
        try:
            return _limited(self._template.generate(values), time.monotonic() + MAX_SECONDS)
        except _Stop as stop:
            problem = f"the model's chat template was stopped: {stop}"
        except SecurityError as error:
            problem = f"the model's chat template tries what it may not: {error}"
        except Exception as error:  # whatever a stranger's program may raise
            problem = f"the model's chat template fails: {str(error)[:300]}"
        raise UserError(problem, where=_WHERE, todo="use --raw and format the prompt yourself")
