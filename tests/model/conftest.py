"""Files that the tests of this package share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import make_tiny

from kbench.model import synthesize


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole llama file of 1 MB."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    synthesize(make_tiny(n_layers=1), path)
    return path
