"""YAML read safely, with the line of every key kept for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .errors import UserError

# A rule file of a 61-layer model on 8 GPUs is 60 KB; a file beyond this is a mistake or an attack.
MAX_YAML_BYTES = 4 << 20
# PyYAML takes some 50 us and 1 KB for a node: a file of a few MB that is all commas would take a GB and a minute.
MAX_YAML_NODES_READ = 100_000
# Longer than any number that means something; YAML's 1:1:1 (base 60) makes numbers of any length otherwise.
MAX_NUMBER_CHARS = 40
# Aliases can make a short text stand for an exponentially large document; no real file comes near this many nodes.
MAX_YAML_NODES = 1_000_000


class Lines(Mapping[str, Any]):
    """A YAML mapping that knows the line of itself and of each key."""

    def __init__(self, data: dict[str, Any], line: int, key_lines: dict[str, int]) -> None:
        self._data, self.line, self._key_lines = data, line, key_lines

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return repr(self._data)

    def line_of(self, key: str) -> int:
        return self._key_lines.get(key, self.line)

    def plain(self) -> dict[str, Any]:
        """The same as plain dicts and lists."""
        return {key: _plain(value) for key, value in self._data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Lines):
        return value.plain()
    return [_plain(item) for item in value] if isinstance(value, list) else value


class _Loader(yaml.SafeLoader):
    n_read = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.n_read += 1
        if self.n_read > MAX_YAML_NODES_READ:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_YAML_NODES_READ} values", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Any:
    # A generator, as PyYAML wants for recursive structures, would hide duplicate keys: build it in one go.
    if not isinstance(node, yaml.MappingNode):  # `!!map [a]`
        raise yaml.constructor.ConstructorError(None, None, "a mapping is none", node.start_mark)
    data: dict[Any, Any] = {}
    key_lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, (str, int)):
            raise yaml.constructor.ConstructorError(
                None, None, f"a key must be text, found {key!r}", key_node.start_mark
            )
        if key in data:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        data[key] = loader.construct_object(value_node, deep=True)
        key_lines[key] = line
    return Lines(data, node.start_mark.line + 1, key_lines)


def _expanded_nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes of the document below ``node`` when every alias is written out; linear in the text."""
    if id(node) not in known:
        known[id(node)] = MAX_YAML_NODES  # what a node that contains itself counts
        value = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [part for pair in value for part in pair] if isinstance(node, yaml.MappingNode) else value
        known[id(node)] = 1 + sum(_expanded_nodes(child, known) for child in children)
    return known[id(node)]


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    text = str(loader.construct_scalar(node))
    if len(text) > MAX_NUMBER_CHARS:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(text)} characters", node.start_mark)
    kind = node.tag.rpartition(":")[2]
    return loader.construct_yaml_int(node) if kind == "int" else loader.construct_yaml_float(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def load_yaml(path: Path | str) -> Any:
    """The document in ``path``: mappings as ``Lines``, sequences as lists, scalars as YAML's core types.

    Raises:
        UserError: no such file, too large, not UTF-8, no valid YAML (with the line).
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_YAML_BYTES:
            raise UserError(f"{size} bytes", where=str(path), accepted=f"at most {MAX_YAML_BYTES} bytes of YAML")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError("no such file", where=str(path), todo="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"no UTF-8 at byte {error.start}"
        raise UserError(f"cannot be read: {why}", where=str(path)) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str = "<text>") -> Any:
    """Like ``load_yaml`` for text at hand; ``where`` names it in errors."""
    try:
        loader = _Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_nodes(node, {}) > MAX_YAML_NODES:
            raise UserError("its aliases expand to too many nodes", where=where, accepted=f"at most {MAX_YAML_NODES}")
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ArithmeticError, ValueError, LookupError, AttributeError) as error:
        # PyYAML lets the latter escape from scalars that claim a type: `2024-99-99`, `!!bool maybe`, `!!int ""`.
        mark = getattr(error, "problem_mark", None)
        at = f"{where}:{mark.line + 1}" if mark is not None else where
        raise UserError(f"no valid YAML: {getattr(error, 'problem', None) or error}", where=at) from None
