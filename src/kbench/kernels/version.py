"""What an implementation's speed depends on besides the machine: a measurement made with another version is stale."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
from importlib import metadata
from pathlib import Path

from .implementation import Implementation


@functools.lru_cache(maxsize=1)
def _native_digest() -> str:
    spec = importlib.util.find_spec(".cpu._native", __package__)
    if spec is None or spec.origin is None:
        return "not built"
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


def _package(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"{name} missing"


@functools.lru_cache(maxsize=64)
def _source_digest(kind: type) -> str:
    return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()[:12]


def kernel_version(item: Implementation) -> str:
    """Hash of the native binary, or of the Python source with the version of the package that does the work."""
    if item.name.startswith(("cpu.", "ladder.")):
        return _native_digest()
    package = {"torch": "torch", "kt": "kt-kernel"}.get(item.name, "numpy")
    return f"{_source_digest(type(item))}, {_package(package)}"
