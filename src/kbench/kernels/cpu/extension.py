"""The extension module and its thread pools."""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any

from kbench.core import InvalidEnvironment, default_threads

if TYPE_CHECKING:
    from ._native import Pool


class NativeMissing(InvalidEnvironment, ImportError):
    """The extension is not built, or does not load here."""


@functools.lru_cache(maxsize=1)
def extension() -> Any:
    """The module ``_native``.

    Raises:
        NativeMissing: it is not built, or does not load.
    """
    try:
        return importlib.import_module("._native", __package__)
    except ImportError as error:
        raise NativeMissing(
            f"the native CPU kernels cannot be loaded: {error}",
            where="kbench.kernels.cpu",
            todo="install kbench with a C++17 compiler at hand (pip install .), or use the torch implementation",
        ) from None


@functools.lru_cache(maxsize=8)
def _pool(threads: int, pid: int) -> Pool:
    made: Pool = extension().Pool(threads)
    return made


def pool(threads: int = 0) -> Pool:
    """A pool of ``threads`` (0: as many as this process should use), the same for all who ask for that count.

    A pool lives in the process that made it: after a fork the child gets its own.
    """
    return _pool(threads or default_threads(), os.getpid())
