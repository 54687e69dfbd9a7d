"""Tokens that are drawn where their logits are: the engine's part, with the host's sampler in the kernels' place. The
kernels themselves: ``interpreted_engine.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import make_tiny

from kbench.core import CPU, CheckBroken, Device, Placement, UserError
from kbench.engine import GREEDY, VALUES, Generation, Sampler, SamplingParams, Session, generate, load_model
from kbench.engine.drawn_steps import DrawnSteps, n_candidates
from kbench.engine.planned import PlannedExecutable
from kbench.model import build_tree, describe_gguf, open_gguf, synthesize

GPU = Device("cuda", 0)
PROMPT = [5, 17, 3, 99]
HOT = SamplingParams(temperature=1.7, top_k=30, top_p=0.9, min_p=0.01, seed=3)
MADE: list[HostDraw] = []


class HostDraw:
    """What ``TokenDraw`` does, by the host's sampler."""

    def __init__(self, place: str, top_k: int) -> None:
        self.top_k, self.token = top_k, -1
        MADE.append(self)

    def write(self, top_p: float, min_p: float, temperature: float, uniform: float) -> None:
        self._params = SamplingParams(temperature=temperature, top_k=self.top_k, top_p=top_p, min_p=min_p, seed=0)
        self._uniform = uniform

    def queue(self, logits: Any) -> None:
        row = logits.numpy()[0]
        bad = np.flatnonzero(~np.isfinite(row))
        if bad.size:
            self.token = -1 - int(bad[0])
            return
        ids, shares = Sampler(self._params).probabilities(row)
        self.token = int(ids[min(np.searchsorted(np.cumsum(shares), self._uniform, side="right"), ids.size - 1)])


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    MADE.clear()
    monkeypatch.setattr("kbench.engine.drawing.draws_on", lambda place, top_k: 0 < top_k <= 128)
    monkeypatch.setattr("kbench.engine.drawing.TokenDraw", HostDraw)
    yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawing") / "tiny.gguf"
    synthesize(make_tiny("llama", "Q8_0", n_layers=2), path, seed=4)
    return path


def both(device: Device) -> Placement:
    return Placement(device, "torch", device, "torch")


def load(path: Path, layout: str, **options: Any) -> Session:
    names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
    on_cpu = {"all": (), "mlp on cpu": ("_proj", ".mlp"), "head on cpu": ("lm_head",)}[layout]
    place = {name: both(CPU if name.endswith(on_cpu) and ".self_attn" not in name else GPU) for name in names}
    return load_model(path, place, **{"kv": "f32", "context": 64, "threads": 1, "alias": {GPU: CPU}} | options)


def made(session: Session, params: SamplingParams, n: int = 8) -> Generation:
    session.reset()
    session.traffic.clear()
    out = Generation()
    list(generate(session, PROMPT, params, n, ignore_eos=True, result=out))
    return out


@pytest.fixture(scope="module")
def right(path: Path) -> dict[str, list[int]]:
    """What the host draws of logits that come to it."""
    names = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
    plain = load_model(path, dict.fromkeys(names, both(CPU)), kv="f32", context=64, threads=1)
    return {"greedy": made(plain, GREEDY).ids, "hot": made(plain, HOT).ids}


def on_host(path: Path, params: SamplingParams, *args: Any, **options: Any) -> dict[Any, Any]:
    """What moves where the host draws."""
    session = load(path, *args, **options)
    session._drawn._build = None
    made(session, params)
    return session.traffic.moved


@pytest.mark.parametrize("graph", [True, False], ids=["by plan", "call by call"])
@pytest.mark.parametrize("layout", ["all", "mlp on cpu"])
def test_the_hosts_tokens_and_only_they_cross(
    path: Path, layout: str, graph: bool, right: dict[str, list[int]]
) -> None:
    session = load(path, layout, graph=graph)
    vocab, link = session.descriptor.vocab, (VALUES, "cuda:0", "cpu")
    for name, params in (("greedy", GREEDY), ("hot", HOT), ("hot", HOT)):
        out = made(session, params)
        assert out.ids == right[name] and out.decode_tokens == 7
        assert session.cached_ids == (*PROMPT, *out.ids[:-1])
        drawn = session._drawn.of(params)
        assert drawn is not None and isinstance(drawn[0], PlannedExecutable) == graph
        here, there = session.traffic.moved[link], on_host(path, params, layout, graph=graph)[link]
        # Seven steps: a token's id each in the place of its logits.
        assert here.calls == there.calls and there.n_bytes - here.n_bytes == 7 * (4 * vocab - 4)
    assert [draw.top_k for draw in MADE] == [1, 30]  # bound once each


def test_logits_that_are_the_hosts_are_drawn_of_there(path: Path, right: dict[str, list[int]]) -> None:
    session = load(path, "head on cpu")
    assert not session.draws(HOT) and made(session, HOT).ids == right["hot"] and not MADE


def test_what_kernels_cannot_do_the_host_does(path: Path) -> None:
    session = load(path, "all")
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1e6)
    ids = made(session, penalty, 12).ids
    assert len({*ids, *PROMPT}) == 12 + len(PROMPT) and not MADE
    assert not session.draws(SamplingParams(top_k=129)) and not session.draws(SamplingParams(top_k=0))
    assert session.draws(SamplingParams(top_k=128))
    assert session.draws(SamplingParams(repetition_penalty=2.0, repetition_window=0))


def test_steps_that_were_asked_for_last_are_kept() -> None:
    built: list[int] = []

    def build(n: int) -> None:
        built.append(n)

    steps = DrawnSteps(build, 1000)
    for top_k in (1, 2, 3, 4, 1, 5, 1, 2):
        assert steps.of(SamplingParams(temperature=1.0, top_k=top_k)) is None
    assert built == [1, 2, 3, 4, 5, 2]


def test_a_sequence_of_several_draws_where_its_logits_are(path: Path, right: dict[str, list[int]]) -> None:
    session = load(path, "all", sequences=2)
    other = session.new_sequence()
    token, ids = int(session.prefill(PROMPT, other).argmax()), []
    session.prefill([1, 2], 0)
    for _ in range(8):
        ids.append(token)
        token = session.decode_drawn(token, Sampler(GREEDY), other)
    assert ids == right["greedy"] and session.ids_of(0) == (1, 2)


def test_a_broken_logit_is_an_error_never_a_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = load(path, "all")
    queue = HostDraw.queue

    def broken(self: HostDraw, logits: Any) -> None:
        logits[0, 7] = np.inf
        queue(self, logits)

    monkeypatch.setattr(HostDraw, "queue", broken)
    with pytest.raises(CheckBroken, match="logit 7 is NaN or infinite"):
        made(session, GREEDY)


def test_a_full_context_and_a_wrong_token_are_refused_as_ever(path: Path) -> None:
    session = load(path, "all", context=8)
    out = made(session, GREEDY, 100)
    assert out.stop == "context" and session.position == 8
    with pytest.raises(UserError):
        session.decode_drawn(3, Sampler(GREEDY))
    session.reset()
    with pytest.raises(UserError, match="320"):
        session.decode_drawn(320, Sampler(GREEDY))


@pytest.mark.parametrize(
    ("params", "n"),
    [
        (GREEDY, 1),
        (SamplingParams(), 40),
        (SamplingParams(top_k=0), 1000),
        (SamplingParams(top_k=2000), 1000),
        (SamplingParams(repetition_penalty=1.1), 0),
        (SamplingParams(temperature=0.0, repetition_penalty=1.1), 0),
    ],
)
def test_candidates(params: SamplingParams, n: int) -> None:
    assert n_candidates(params, 1000) == n


def test_a_token_takes_one_random_number_however_many_may_be_drawn() -> None:
    """So a draw elsewhere, which cannot tell whether there was a choice, goes on with the same numbers."""
    wide, narrow = np.zeros(9, np.float32), np.array([9, 0, 0], np.float32)
    one, other = (Sampler(SamplingParams(temperature=0.1, top_k=0, top_p=1.0, min_p=0.5, seed=4)) for _ in range(2))
    one.sample(wide)
    other.sample(narrow)
    assert [one.sample(wide) for _ in range(5)] == [other.sample(wide) for _ in range(5)]


def test_a_profile_has_the_seconds_of_calls_alone(path: Path) -> None:
    """A step's end is no call."""
    found = load(path, "all", graph=False)._drawn.of(GREEDY)
    assert found is not None
    step, draw = found
    draw.write(1.0, 0.0, 1.0, 0.0)
    seconds = step.profile(np.array([5], np.int32), np.array([(0, 0, 1)], np.int64))
    assert len(seconds) == len(step.calls) and draw.token >= 0
