"""What the engine's tests have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kbench.engine import Session


@pytest.fixture(autouse=True, scope="module")
def _float32(float32_torch: None) -> None:
    """Every engine's ``torch`` is in float32."""


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session, Sequence[int]], None]:
    """Prefills until Ctrl-C, which comes when the step has written keys and values, and is not counted yet."""

    def prefill(session: Session, ids: Sequence[int]) -> None:
        run = session._prefill.run

        def interrupted(tokens: Any, spans: Any) -> None:
            run(tokens, spans)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(session._prefill, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.prefill(ids)

    return prefill
