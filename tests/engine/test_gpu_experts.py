"""Some of a layer's experts on a GPU, rehearsed on the CPU: one device's tokens, weights once, two sides at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layerwise_rules import layerwise_rules
from tiny_models import make_tiny

from kbench.core import CPU, Device, GpuExperts, Phase, Placement, UserError
from kbench.engine import GREEDY, VALUES, WEIGHTS, Session, generate, load_model, loader
from kbench.engine.plan_check import beside, plan_errors
from kbench.engine.planned import PlannedExecutable
from kbench.model import build_tree, describe_gguf, open_gguf, planned_crossings, synthesize
from kbench.suites.realised import fallbacks

GPU = Device("cuda", 0)
PROMPT = [5, 17, 3, 99, 42, 42, 7, 61, 8, 30, 12]
# Shared experts; none; some that are weighed; biases and a clamp.
ARCHITECTURES = ("deepseek2", "qwen3moe", "qwen2moe", "gpt-oss")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesized(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesized("deepseek2", tmp_path_factory)


def synthesized(architecture: str, factory: pytest.TempPathFactory) -> Path:
    path = factory.mktemp("gpu_experts") / f"{architecture}.gguf"
    # Weights with which no choice of experts is so near a tie that rounding on one side turns it (with seed 4 one is).
    synthesize(make_tiny(architecture, "Q8_0"), path, seed=5)
    return path


def hybrid(path: Path, op: str, experts: tuple[int, ...] = (0, 3, 6, 7)) -> dict[str, Placement]:
    """Everything on the GPU but the embedding and, of eight experts a layer, all that are not ``experts``."""
    here = Placement(CPU, op, CPU, op, gpu_experts=GpuExperts(experts, GPU, op) if experts else None)
    places = {}
    for module in build_tree(describe_gguf(open_gguf(path))).walk():
        on_gpu = Placement(GPU, op, GPU, op)
        places[module.name] = here if module.name.endswith((".experts", "embed_tokens")) else on_gpu
    return places


def load(path: Path, places: Any, **options: Any) -> Session:
    options = {"kv": "f32", "context": 64, "chunk": 16, "threads": 1, "alias": {GPU: CPU}} | options
    return load_model(path, places, **options)


def one_device(path: Path, op: str) -> Session:
    return load(path, None, default=Placement(CPU, op, CPU, op), alias=None)


def logits_of(session: Session) -> np.ndarray:
    """Of a prompt in two steps, and of tokens one by one."""
    session.reset()
    rows = [session.prefill(PROMPT[:7]).copy(), session.prefill(PROMPT[7:]).copy()]
    return np.stack([*rows, *(session.decode(token).copy() for token in (4, 44, 100, 7))])


def tokens_of(session: Session) -> list[int]:
    return [token.id for token in generate(session, PROMPT, GREEDY, 8, ignore_eos=True)]


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_two_devices_make_the_tokens_of_one(path: Path) -> None:
    """Float32 sums in another order: 1e-5, as implementations are held to layer by layer."""
    plain = one_device(path, "reference")
    expected, right = logits_of(plain), tokens_of(plain)
    for options in ({}, {"graph": False}):
        session = load(path, hybrid(path, "reference"), **options)
        assert isinstance(session._decode, PlannedExecutable) == (not options)
        assert apart(logits_of(session), expected) < 1e-5
        assert tokens_of(session) == right


@pytest.mark.parametrize("experts", [(5,), (0, 1, 2, 3, 4, 6, 7)])
def test_one_expert_on_one_side_of_two_that_a_token_visits(deepseek: Path, experts: tuple[int, ...]) -> None:
    for op, most in (("reference", 1e-5), ("auto", 5e-3)):
        session, plain = load(deepseek, hybrid(deepseek, op, experts)), one_device(deepseek, op)
        assert apart(logits_of(session), logits_of(plain)) < most


def test_native_kernels_do_the_cpus_part(path: Path) -> None:
    """As kernels are chosen: native ones here, torch for the masked part, where a GPU would have Triton's."""
    plain, session = one_device(path, "auto"), load(path, hybrid(path, "auto"))
    experts = [call for call in session.decode_calls if call.op == "moe_experts"]
    assert {(one.device, one.implementation.split(".")[0]) for one in experts} == {(CPU, "cpu"), (GPU, "torch")}
    assert fallbacks(session) == []
    # Activations are rounded to some 14 bits on one side and not at all on the other.
    assert apart(logits_of(session), logits_of(plain)) < 5e-3
    assert tokens_of(session) == tokens_of(plain)


def test_weights_are_there_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side packs its own experts, and what is foretold before loading is what it is for a layer in one place."""
    told: list[int] = []
    monkeypatch.setattr(loader, "check_room", lambda needs, context: told.append(needs[CPU].weights))
    whole, split = (load(path, hybrid(path, "reference", experts)) for experts in ((), (0, 3, 6, 7)))
    assert split.weights.n_bytes == whole.weights.n_bytes <= told[0] == told[1]
    assert split.report.file_bytes == whole.report.file_bytes
    assert load(path, hybrid(path, "auto")).weights.n_bytes <= told[2]


def test_both_sides_run_at_once_and_the_plan_is_right(deepseek: Path) -> None:
    program = load(deepseek, hybrid(deepseek, "auto"))._decode
    assert isinstance(program, PlannedExecutable)
    assert plan_errors(program.plan) == []
    ops = {item.number: item.call.op for item in program._items if item.what == "compute"}
    pairs = [[{ops[n] for n in one.calls} for one in pair] for pair in beside(program.plan)]
    assert any("moe_experts" in a and "moe_experts" in b for a, b in pairs)


def test_what_crosses_is_what_was_foretold(deepseek: Path) -> None:
    places, whole = hybrid(deepseek, "auto"), hybrid(deepseek, "auto", ())
    session = load(deepseek, places)
    for phase, tokens in ((Phase.PREFILL, 9), (Phase.DECODE, 1)):
        session.reset()
        session.traffic.clear()
        session.prefill(PROMPT[:9]) if phase is Phase.PREFILL else session.decode(3)
        told = planned_crossings(session.descriptor, places, phase, tokens)
        assert told == planned_crossings(session.descriptor, whole, phase, tokens)
        moved = (session.traffic.calls(VALUES), session.traffic.n_bytes(VALUES))
        assert moved == (sum(one.n_transfers for one in told), sum(one.n_bytes for one in told))


def test_the_others_are_brought_for_a_long_prompt(deepseek: Path, tmp_path: Path) -> None:
    """Layer-wise prefill brings the CPU's experts of one layer at a time to where the GPU's lie already."""

    def rules(threshold: int) -> Any:
        rest = (
            "- match: {name: '\\.experts$'}\n"
            "  replace:\n    class: Experts\n"
            "    kwargs: {generate_device: cpu, generate_op: torch, prefill_device: 'cuda:0', prefill_op: torch,\n"
            "             gpu_experts: [0-2, 7], gpu_experts_op: torch}\n"
            "- match: {name: '^(model|lm_head)'}\n"
            "  replace: {kwargs: {generate_device: 'cuda:0', generate_op: torch}}\n"
        )
        return layerwise_rules(tmp_path, threshold, rest)

    session, twice = (load(deepseek, rules(threshold)) for threshold in (8, 0))
    plain = one_device(deepseek, "torch")
    resident = session.weights.n_bytes
    assert resident == plain.weights.n_bytes
    assert apart(session.prefill(PROMPT), plain.prefill(PROMPT)) < 1e-4
    assert session.traffic.n_bytes(WEIGHTS) == twice.weights.n_bytes - resident > 0
    assert session.weights.n_bytes == resident
    assert apart(session.decode(4), plain.decode(4)) < 1e-4


def test_experts_that_a_model_has_not(deepseek: Path) -> None:
    with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.experts, gpu_experts.*expert 8 of 8"):
        load(deepseek, hybrid(deepseek, "auto", (7, 8)))
