"""Native kernels on a real model and real text, against the float32 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kbench.core import Placement
from kbench.engine import Session, generate, load_model
from kbench.kernels import implementations

NATIVE = [i.name for i in implementations() if i.name.startswith("cpu.") and i.runnable().ok]

# Native matrices round activations to two int8 planes in blocks of 32: 15 bits, a relative step of 2^-15 of a block's
# largest element. Blocks of SmolLM2's hidden states hold elements up to some 30 times their root mean square, and 30
# layers add up 210 roundings: 30 * 2^-15 / sqrt(12) * sqrt(210) = 0.004 norm-wise if none is damped.
LOGIT_ERROR = 0.004
# The logits' root mean square is 6.5 on this text: an error of 0.026 each, and two of them may change places when they
# are closer than two deviations of their difference.
GAP = 2 * 6.5 * LOGIT_ERROR * 2**0.5
AGREEMENT = 0.99

PROMPT = "Write a short story about a lighthouse keeper."
N_TOKENS = 64


def load(path: Path, name: str) -> Session:
    return load_model(path, default=Placement(generate_op=name, prefill_op=name), context=640)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Session:
    return load(smollm2_path, "reference")


@pytest.fixture(scope="module")
def text_ids(reference: Session) -> list[int]:
    ids = reference.tokenizer.encode((Path(__file__).parent / "data" / "english.txt").read_text())
    assert len(ids) >= 500
    return ids


@pytest.fixture(scope="module")
def text_logits(reference: Session, text_ids: list[int]) -> np.ndarray:
    reference.reset()
    return reference.logits(text_ids)


@pytest.fixture(scope="module", params=NATIVE)
def native(request: pytest.FixtureRequest, smollm2_path: Path) -> Session:
    return load(smollm2_path, request.param)


def share(session: Session, n_tokens: int) -> int:
    """The scalar kernels are the readable truth and some 20 times slower: they get a thirty-second of the tokens."""
    return n_tokens // 32 if session.decode_calls[0].implementation == "cpu.scalar" else n_tokens


def gaps(logits: np.ndarray) -> np.ndarray:
    """How far the likeliest token is ahead of the next, per row."""
    top = np.partition(logits, -2, axis=-1)[:, -2:]
    return top[:, 1] - top[:, 0]


def test_greedy_text_is_the_references(reference: Session, native: Session) -> None:
    """The same tokens, or they part where the reference itself hardly prefers one. Running the reference over what was
    generated compares the two up to their first difference, which is where a comparison ends anyway."""
    assert reference.template is not None
    prompt = reference.template.render([{"role": "user", "content": PROMPT}])
    ids = reference.tokenizer.encode(prompt, parse_special=True)
    native.reset()
    n_tokens = share(native, N_TOKENS)
    made = [token.id for token in generate(native, ids, max_tokens=n_tokens, ignore_eos=True)]
    reference.reset()
    logits = reference.logits([*ids, *made[:-1]])[len(ids) - 1 :]
    different = np.flatnonzero(logits.argmax(axis=-1) != made)
    if different.size:
        assert gaps(logits)[different[0]] < GAP, f"token {different[0]}"


def test_next_tokens_over_a_text(native: Session, text_ids: list[int], text_logits: np.ndarray) -> None:
    n_tokens = share(native, len(text_ids))
    expected = text_logits[:n_tokens]
    native.reset()
    logits = native.logits(text_ids[:n_tokens])
    error = float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))
    different = np.flatnonzero(logits.argmax(axis=-1) != expected.argmax(axis=-1))
    assert error <= LOGIT_ERROR
    assert gaps(expected)[different].max(initial=0) < GAP
    if n_tokens >= 500:  # of fewer, one is too large a share
        assert 1 - different.size / n_tokens >= AGREEMENT


def test_decoding_a_text_is_as_close_as_prefilling_it(
    native: Session, text_ids: list[int], text_logits: np.ndarray
) -> None:
    """Decode and prefill add in different orders: both are compared with the reference, not with each other."""
    native.reset()
    end = 20 + max(4, share(native, 16))
    native.prefill(text_ids[:20])
    expected = text_logits[20:end]
    found = np.stack([native.decode(token).copy() for token in text_ids[20:end]])
    assert np.linalg.norm(found - expected) <= LOGIT_ERROR * np.linalg.norm(expected)
