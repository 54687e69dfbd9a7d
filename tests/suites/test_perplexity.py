"""Perplexity and divergence, against transformers on small random models and llama.cpp on a real one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kbench.core import CheckBroken, UserError
from kbench.engine import load_model
from kbench.suites import english, perplexity
from kbench.suites.perplexity import log_softmax, perplexity_fields


class Made:
    """A session whose logits are a table's rows, by the token before; its tokens are a text's letters."""

    class tokenizer:
        add_bos, bos_id = False, None

        @staticmethod
        def encode(text: str, special: bool | None = None) -> list[int]:
            return [ord(letter) - 97 for letter in text]

    def __init__(self, table: Any) -> None:
        self.table, self.seen = np.asarray(table, np.float32), []

    def reset(self) -> None:
        self.seen.append([])

    def prefill(self, tokens: Any) -> Any:
        self.seen[-1] += tokens
        return self.table[tokens[-1]]

    def logits(self, tokens: Any) -> Any:
        self.seen[-1] += tokens
        return self.table[tokens]


def test_by_hand() -> None:
    """Of two letters, b follows a with 3/4: of a window's 8 letters the last 3 are predicted."""
    table = np.log([[1, 3], [2, 2]])
    made = Made(table)
    own, _, _ = perplexity(made, "ababababaaaaaaaaab", window=8)
    assert made.seen == [[0, 1, 0, 1, 0, 1, 0], [0] * 7]
    expected = [math.log(4 / 3), math.log(2), math.log(4 / 3)] + [math.log(4)] * 3
    assert own.nll == pytest.approx(expected, abs=1e-6) and (own.n_windows, own.window) == (2, 8)
    assert own.value == pytest.approx(math.exp(np.mean(expected)), abs=1e-6)
    half = 1.959964 * np.std(expected, ddof=1) / math.sqrt(6)
    assert math.log(own.interval.high) == pytest.approx(np.mean(expected) + half, abs=1e-6)


def test_divergence_by_hand() -> None:
    p, q = np.array([[1, 3], [2, 2]]) / 4, np.array([[2, 2], [1, 3]]) / 4
    own, ref, apart = perplexity(Made(np.log(p)), "aaaaaaaa", window=8, against=Made(np.log(q)))
    assert ref is not None and apart is not None
    assert ref.value == pytest.approx(2, abs=1e-6) and own.value == pytest.approx(4, abs=1e-6)
    assert apart.ratio == pytest.approx(2, abs=1e-6)
    assert apart.kl == pytest.approx([(q[0] * np.log(q[0] / p[0])).sum()] * 3, abs=1e-6)
    assert apart.same_top == 0.0  # 3/4 for b, against a tie that goes to a
    same = perplexity(Made(np.log(p)), "abababab", window=8, against=Made(np.log(p)))[2]
    assert same is not None and same.ratio == 1 and same.kl.max() == 0 and same.same_top == 1


def test_what_is_refused() -> None:
    made = Made(np.zeros((2, 2)))
    with pytest.raises(UserError, match="--window"):
        perplexity(made, "ab" * 10, window=4)
    with pytest.raises(UserError, match="3 tokens"):
        perplexity(made, "aba", window=8)
    other = Made(np.zeros((2, 2)))
    other.tokenizer = type("T", (), {"encode": staticmethod(lambda text, special=None: [0]), "add_bos": False})  # type: ignore[misc,assignment]
    with pytest.raises(UserError, match="different tokens"):
        perplexity(made, "ab" * 8, window=8, against=other)
    own, _, _ = perplexity(made, "ab" * 20, window=8, max_tokens=17)
    assert own.n_windows == 2


def test_log_softmax_survives_large_logits() -> None:
    found = log_softmax(np.array([[1000.0, 999.0, -1000.0]]))
    assert np.exp(found).sum() == pytest.approx(1) and found[0, 2] < -1999


def test_against_transformers(tiny_models: dict[str, tuple[Path, Any]]) -> None:
    """Negative log likelihoods and KL of two models, each as torch computes it from Hugging Face's logits."""
    import torch
    from torch.nn.functional import cross_entropy, kl_div
    from torch.nn.functional import log_softmax as torch_log_softmax

    (path, model), (other_path, other) = tiny_models["llama"], tiny_models["llama3"]
    session, reference = (load_model(one, kv="f32") for one in (path, other_path))
    text, window = english()[:200], 64
    own, ref, apart = perplexity(session, text, window=window, against=reference)
    assert ref is not None and apart is not None
    ids = session.tokenizer.encode(text, special=False)
    nll, kl = [], []
    for begin in range(0, len(ids) - window + 1, window):
        tokens = torch.tensor([ids[begin : begin + window]])
        if session.tokenizer.add_bos:
            tokens[0, 0] = session.tokenizer.bos_id
        with torch.no_grad():
            mine, theirs = (m(tokens).logits[0, window // 2 : -1].double() for m in (model, other))
        nll += cross_entropy(mine, tokens[0, window // 2 + 1 :], reduction="none").tolist()
        kl += (
            kl_div(torch_log_softmax(mine, -1), torch_log_softmax(theirs, -1), log_target=True, reduction="none")
            .sum(-1)
            .tolist()
        )
    assert own.nll.tolist() == pytest.approx(nll, abs=2e-3)
    assert apart.kl.tolist() == pytest.approx(kl, abs=4e-3) and np.mean(kl) > 0.05
    fields = perplexity_fields(own, ref, apart)
    assert fields["against"]["ratio"] == pytest.approx(own.value / ref.value)
    assert fields["against"]["kl_median"] <= fields["against"]["kl_p99"] <= fields["against"]["kl_max"]


def test_against_llama_cpp(smollm2_path: Path) -> None:
    """A window of the real model: llama.cpp rounds activations to 8 bits, which moves a token by some hundredths."""
    llama_cpp = pytest.importorskip("llama_cpp")
    window = 192
    own, _, _ = perplexity(load_model(smollm2_path, context=window), english(), window=window, max_tokens=window)
    llama = llama_cpp.Llama(str(smollm2_path), n_ctx=window, n_batch=window, logits_all=True, verbose=False)
    ids = llama.tokenize(english().encode(), add_bos=False)[:window]
    llama.eval(ids)
    logits = log_softmax(np.array(llama.scores[window // 2 : window - 1]))
    theirs = -logits[np.arange(len(logits)), ids[window // 2 + 1 :]]
    assert own.nll.size == theirs.size == window // 2 - 1
    assert np.abs(own.nll - theirs).mean() < 0.1
    assert own.value == pytest.approx(math.exp(theirs.mean()), rel=0.03)
    assert 5 < own.value < 60  # English to it, and not known by heart


@pytest.mark.parametrize("logit", [math.nan, math.inf, 3e38])
def test_logits_that_are_no_numbers_are_a_broken_check(logit: float) -> None:
    with pytest.raises(CheckBroken, match="of the model reach"):
        perplexity(Made([[logit, 0.0], [0.0, 0.0]]), "ababababab", window=8)
    with pytest.raises(CheckBroken, match="of the reference reach"):
        sound = Made([[0.0, 0.0], [0.0, 0.0]])
        perplexity(sound, "ababababab", window=8, against=Made([[logit, 0.0], [0.0, 0.0]]))
