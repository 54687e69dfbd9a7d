"""Whole steps of a small model under pytest-benchmark: `pytest --benchmark-only tests/bench`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import make_tiny

from kbench.engine import Session, load_model
from kbench.model import synthesize

PROMPT = list(range(1, 65))


@pytest.fixture(scope="module", params=["llama", "qwen3moe", "deepseek2"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("bench") / f"{request.param}.gguf"
    synthesize(make_tiny(request.param), path)
    return load_model(path, context=128)


def test_prefill(session: Session, kbench_benchmark: Any) -> None:
    def prefill() -> Any:
        session.reset()
        return session.prefill(PROMPT)

    assert np.isfinite(kbench_benchmark(prefill)).all()


def test_decode(session: Session, kbench_benchmark: Any) -> None:
    session.reset()
    session.prefill(PROMPT)

    def decode() -> Any:
        session.truncate(len(PROMPT))
        return session.decode(7)

    assert np.isfinite(kbench_benchmark(decode)).all()
