"""Rules for several devices, rehearsed on the CPU: one device's tokens, and exactly the traffic that was lowered."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layerwise_rules import layerwise_rules
from tiny_models import make_tiny

from kbench.core import CPU, Assignment, Device, InvalidEnvironment, Phase, Placement, UserError, kv_bytes
from kbench.engine import CACHE, GREEDY, VALUES, WEIGHTS, DeviceMap, Session, generate, load_model, parse_alias
from kbench.engine.machine import Machine
from kbench.engine.queues import ThreadQueue
from kbench.engine.schedule import COMPUTE, schedule
from kbench.model import build_tree, describe_gguf, lower, open_gguf, synthesize
from kbench.rules import load_rules

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
ALIAS = {GPU: CPU, GPU1: CPU}
PROMPT = [5, 17, 3, 99, 42, 42, 7, 61, 8, 30, 12]
Place = Callable[[str], Placement]


def both(device: Device, op: str = "reference") -> Placement:
    return Placement(device, op, device, op)


def layer_of(module: str) -> int:
    found = re.match(r"model\.layers\.(\d+)", module)
    return int(found[1]) if found else -1 if module == "model.embed_tokens" else 1000


# Name -> where each module runs.
LAYOUTS: dict[str, Place] = {
    "experts on cpu, the rest on cuda:0": lambda m: both(CPU if m.endswith(".experts") else GPU),
    "mlp on cpu, attention on cuda:0": lambda m: both(GPU if ".self_attn" in m else CPU),
    "layers split over two": lambda m: both(GPU if layer_of(m) < 1 else GPU1),
    "every third module elsewhere": lambda m: both((CPU, GPU, GPU1)[sum(m.encode()) % 3]),
    "prefill on cuda:0, decode on cpu": lambda m: Placement(CPU, "reference", GPU, "reference"),
    "attention changes its device": lambda m: Placement(
        GPU if layer_of(m) == 1 else CPU, "reference", GPU1 if layer_of(m) < 2 else CPU, "reference"
    ),
    "results wanted on the cpu": lambda m: Placement(GPU, "reference", GPU, "reference", CPU),
}


@pytest.fixture(scope="module")
def deepseek_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "deepseek.gguf"
    synthesize(make_tiny("deepseek2", "Q8_0"), path, seed=4)
    return path


@pytest.fixture(scope="module", params=["llama", "deepseek2"])
def path(request: pytest.FixtureRequest, tiny_models: dict[str, tuple[Path, Any]], deepseek_path: Path) -> Path:
    return tiny_models["llama"][0] if request.param == "llama" else deepseek_path


def assignment(path: Path, place: Place) -> Assignment:
    return {module.name: place(module.name) for module in build_tree(describe_gguf(open_gguf(path))).walk()}


def load(path: Path, place: Place, **options: Any) -> Session:
    options = {"kv": "f32", "context": 64, "chunk": 16, "threads": 1, "alias": ALIAS} | options
    return load_model(path, assignment(path, place), **options)


def outputs(session: Session) -> list[np.ndarray]:
    """Logits of a prompt in two steps, of single tokens, and of more of each."""
    found = [session.prefill(PROMPT[:7]), session.prefill(PROMPT[7:])]
    found += [session.decode(token).copy() for token in (4, 44, 100)]
    found += [session.prefill([9, 19, 29]), session.decode(13).copy()]
    session.truncate(5)
    return [*found, session.decode(77).copy(), *session.logits([1, 2, 3])]


@pytest.fixture(scope="module")
def expected(path: Path) -> list[np.ndarray]:
    return outputs(load(path, lambda m: both(CPU), alias=None))


def predicted(session: Session, path: Path, place: Place, phase: Phase, tokens: int) -> tuple[int, int]:
    """Transfers of one step, and their bytes, as lowering has them."""
    model = describe_gguf(open_gguf(path))
    calls = lower(
        model, assignment(path, place), phase, tokens, 64, kv="f32", deliver=CPU, resolve=lambda *_: "reference"
    )
    moves = [call.problem for call in calls if call.op == "transfer"]
    return len(moves), sum(4 * move.integer("d") * move.integer("tokens") for move in moves)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_devices_change_nothing_but_traffic(path: Path, expected: list[np.ndarray], layout: str) -> None:
    place = LAYOUTS[layout]
    session = load(path, place)
    for found, right in zip(outputs(session), expected, strict=True):
        np.testing.assert_array_equal(found, right)
    for phase, tokens in ((Phase.PREFILL, 9), (Phase.DECODE, 1)):
        session.reset()
        session.traffic.clear()
        session.prefill(PROMPT[:9]) if phase is Phase.PREFILL else session.decode(3)
        calls, n_bytes = predicted(session, path, place, phase, tokens)
        assert (session.traffic.calls(VALUES), session.traffic.n_bytes(VALUES)) == (calls, n_bytes)
        assert calls > 0 or ("decode on cpu" in layout and phase is Phase.DECODE)


def test_every_device_keeps_its_own_weights(path: Path) -> None:
    """A phase that runs elsewhere has its weights there too: they are kept twice."""
    one = load(path, lambda m: both(GPU)).weights.n_bytes
    assert load(path, LAYOUTS["prefill on cuda:0, decode on cpu"]).weights.n_bytes == 2 * one


def test_a_cache_follows_its_attention_once(path: Path) -> None:
    session = load(path, LAYOUTS["prefill on cuda:0, decode on cpu"])
    m = session.descriptor
    if m.mla is None:
        a_token = m.n_layers * m.kv_heads * 2 * kv_bytes("f32", m.head_dim)
    else:
        a_token = m.n_layers * kv_bytes("f32", *m.cached_widths)
    session.prefill(PROMPT)
    assert session.traffic.n_bytes(CACHE) == 0
    session.decode(1)
    assert session.traffic.moved[CACHE, "cuda:0", "cpu"].n_bytes == len(PROMPT) * a_token
    session.decode(2)
    assert session.traffic.n_bytes(CACHE) == len(PROMPT) * a_token
    session.prefill([3])
    assert session.traffic.moved[CACHE, "cpu", "cuda:0"].n_bytes == 2 * a_token


@pytest.mark.parametrize("op", ["torch", "auto"])
@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0"])
def test_torch_on_tensors_of_the_device(deepseek_path: Path, op: str, kv: str) -> None:
    """What a GPU will run, on torch's device cpu: within float32 sums in other orders of the torch baseline, up to a
    rounding of the cache here and there."""
    place = lambda m: both(CPU if m.endswith(".experts") else GPU, op)  # noqa: E731
    found = outputs(load(deepseek_path, place, kv=kv))
    right = outputs(load(deepseek_path, lambda m: both(CPU, op), kv=kv, alias=None))
    for a, b in zip(found, right, strict=True):
        assert np.linalg.norm(a - b) <= (0 if op == "auto" else 2e-3) * np.linalg.norm(b)
        assert a.argmax() == b.argmax()


def test_shared_experts_are_issued_before_routed_experts(deepseek_path: Path) -> None:
    """They are queued on their device before the CPU is busy with the routed ones, although lowered behind them."""
    place = LAYOUTS["experts on cpu, the rest on cuda:0"]
    model = describe_gguf(open_gguf(deepseek_path))
    calls = lower(model, assignment(deepseek_path, place), Phase.DECODE, 1, 64, resolve=lambda *_: "reference")
    lowered = [call.module for call in calls]
    issued = [item.call.module for item in schedule(calls, DeviceMap(ALIAS)) if item.what == COMPUTE]
    routed, shared = "model.layers.1.mlp.experts", "model.layers.1.mlp.shared_experts.down_proj"
    assert lowered.index(routed) < lowered.index(shared)
    assert issued.index(shared) < issued.index(routed)
    assert sorted(issued) == sorted(call.module for call in calls if call.op != "transfer")


def test_one_device_keeps_the_order_of_lowering(deepseek_path: Path) -> None:
    model = describe_gguf(open_gguf(deepseek_path))
    for device in (CPU, GPU):
        place = assignment(deepseek_path, lambda m, device=device: both(device))
        calls = lower(model, place, Phase.DECODE, 1, 64, resolve=lambda *_: "reference")
        assert [item.call for item in schedule(calls, DeviceMap(ALIAS))] == list(calls)


def test_ktransformers_rules_for_a_gpu_rehearse(deepseek_path: Path, tmp_path: Path) -> None:
    """Its operators are GPU kernels: something of the CPU's stands in for them, and the report says so."""
    path = tmp_path / "rules.yaml"
    path.write_text(
        "- match: {name: '^model\\.layers\\..*\\.mlp\\.experts$'}\n"
        "  replace:\n    class: ktransformers.operators.experts.KTransformersExperts\n"
        "    kwargs: {generate_device: cpu, generate_op: KExpertsCPU, prefill_device: cuda,\n"
        "             prefill_op: KExpertsTorch, out_device: cuda}\n  recursive: false\n"
        "- match: {class: torch.nn.Linear}\n"
        "  replace: {class: ktransformers.operators.linear.KTransformersLinear}\n"
    )
    session = load_model(deepseek_path, load_rules(path), context=64, threads=1, alias=parse_alias(["cuda:0=cpu"]))
    assert set(session.report.stand_ins) == {"marlin"}
    plain = load_model(deepseek_path, context=64, threads=1)
    tokens = [[token.id for token in generate(s, PROMPT, GREEDY, 8, ignore_eos=True)] for s in (session, plain)]
    assert len(tokens[0]) == 8 and session.traffic.calls(VALUES) > 0
    np.testing.assert_allclose(session.logits([1, 2]), plain.logits([1, 2]), rtol=0.2, atol=0.2)


MODEL_RULE = (
    "- match: {name: '^model$'}\n  replace:\n    class: ktransformers.operators.models.KDeepseekV2Model\n"
    "    kwargs: {transfer_map: {%s}}\n"
)
DEFAULTS = "- match: {name: '%s'}\n  replace: {class: default, kwargs: {generate_device: '%s'}}\n"
# How people split a model in KTransformers' dialect -> crossings between the two GPUs in a step, there and back.
MAPS = {
    "a map alone": (MODEL_RULE % "1: 'cuda:1'", 1, 0),
    "rules for all that is in the layers": (
        MODEL_RULE % "1: 'cuda:1'"
        + DEFAULTS % (r"^model\.layers\.0\.", "cuda:0")
        + DEFAULTS % (r"(^model\.layers\.[1-9]\.)|(^model\.norm)|(^lm_head)", "cuda:1"),
        1,
        0,
    ),
    "a catch-all that takes the layers themselves": (
        MODEL_RULE % "1: 'cuda:1'"
        + DEFAULTS % (r"(^model\.layers\.[1-9]\.)|(^model\.norm)|(^lm_head)", "cuda:1")
        + DEFAULTS % ("^model", "cuda:0"),
        1,
        0,
    ),
    "there and back": (MODEL_RULE % "1: 'cuda:1', 2: 'cuda:0'", 1, 1),
    "attention against the map": (MODEL_RULE % "1: 'cuda:1'" + DEFAULTS % (r"layers\.1\.self_attn", "cuda:0"), 2, 1),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_transfer_map_moves_the_hidden_state_once(path: Path, tmp_path: Path, name: str) -> None:
    """Residual and norms stay where the map sends the hidden state: it crosses at the map's layers and nowhere else."""
    text, there, back = MAPS[name]
    file = tmp_path / "rules.yaml"
    file.write_text(DEFAULTS % ("embed_tokens", "cpu") + text)
    options: dict[str, Any] = {"kv": "f32", "context": 64, "chunk": 16, "threads": 1}
    session = load_model(path, load_rules(file), alias=ALIAS, **options)
    plain = load_model(path, **options)
    np.testing.assert_array_equal(session.prefill(PROMPT), plain.prefill(PROMPT))
    session.traffic.clear()
    np.testing.assert_array_equal(session.decode(4), plain.decode(4))
    moved = {(src, dst): entry.calls for (what, src, dst), entry in session.traffic.moved.items() if what == VALUES}
    assert (moved.pop(("cuda:0", "cuda:1")), moved.pop(("cuda:1", "cuda:0"), 0)) == (there, back)
    last = "cuda:0" if name == "there and back" else "cuda:1"
    assert moved == {("cpu", "cuda:0"): 1, (last, "cpu"): 1}  # the embedding's row, and the logits
    assert {call.device for call in session.decode_calls if call.module == "model.layers.1"} == {GPU1}


def test_a_profile_has_every_call_once(deepseek_path: Path) -> None:
    session = load(deepseek_path, LAYOUTS["experts on cpu, the rest on cuda:0"])
    found = session.profile(3)
    assert [call for call, _ in found] == list(session.decode_calls) and all(seconds > 0 for _, seconds in found)


def test_what_fails_on_a_device_is_raised(deepseek_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbench.kernels import implementation

    session = load(deepseek_path, LAYOUTS["experts on cpu, the rest on cuda:0"])

    def fail(*_: Any) -> Any:
        raise UserError("no shared experts today")

    monkeypatch.setattr(type(implementation("reference")), "run", fail)
    with pytest.raises(UserError, match="no shared experts today"):
        session.decode(1)


def test_a_queue_works_in_order_and_marks_are_reached_after_a_failure() -> None:
    seen: list[int] = []
    queue = ThreadQueue("test")
    queue.submit(lambda: seen.append(1))
    queue.submit(lambda: seen.append(1 // 0))
    queue.submit(lambda: seen.append(3))
    queue.mark().block()
    with pytest.raises(ZeroDivisionError):
        queue.drain()
    assert seen == [1]
    queue.submit(lambda: seen.append(4))
    queue.drain()
    assert seen == [1, 4]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["cuda:0"], "DEVICE=DEVICE"),
        (["gpu=cpu"], "unknown device 'gpu'"),
        (["cpu=cuda:0"], "other than cpu"),
        (["cuda:0=cpu", "cuda=cpu"], "given twice"),
        (["cuda:0=cuda:1", "cuda:1=cpu"], "alias itself"),
        (["host1/cuda:0=cpu"], "every host"),
    ],
)
def test_aliases_that_make_no_sense(texts: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse_alias(texts)


def test_aliases_are_read() -> None:
    assert parse_alias(["cuda=cpu", "cuda:1=cuda:2"]) == {GPU: CPU, GPU1: Device("cuda", 2)}


def test_a_host_that_is_not_there(deepseek_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="host1/cpu, and there is one host"):
        load(deepseek_path, lambda m: both(Device("cpu", 0, 1)))


@pytest.mark.parametrize("text", ["cpu", "cuda:3", "host1/cpu", "host12/cuda:1"])
def test_devices_are_spelled_as_they_are_read(text: str) -> None:
    assert str(Device.parse(text)) == text


def test_a_long_prompt_prefills_layer_by_layer(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that only prefill has on the device are there one layer at a time; a short prompt runs as decode does."""

    def apart(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    def rules(threshold: int) -> Any:
        rest = (
            "- match: {name: '^model\\.layers.*\\.mlp'}\n"
            "  replace: {kwargs: {generate_device: cpu, generate_op: torch, prefill_device: 'cuda:0',\n"
            "            prefill_op: torch}}\n"
        )
        return layerwise_rules(tmp_path, threshold, rest)

    options: dict[str, Any] = {"kv": "f32", "context": 64, "chunk": 16, "threads": 1, "alias": ALIAS}
    options["default"] = both(CPU)
    right, twice = (load_model(path, given, **options) for given in (rules(64), rules(0)))
    session = load_model(path, rules(8), **options)
    resident = session.weights.n_bytes
    assert resident == right.weights.n_bytes
    for _ in range(2):
        for prompt, long in ((PROMPT, True), (PROMPT[:8], False)):
            session.reset()
            right.reset()
            session.traffic.clear()
            assert apart(session.prefill(prompt), right.prefill(prompt)) < 1e-4
            assert apart(session.decode(3), right.decode(3)) < 1e-4
            brought = twice.weights.n_bytes - resident if long else 0
            assert session.traffic.n_bytes(WEIGHTS) == brought
            assert (session.traffic.n_bytes(VALUES) > 0) == long
            assert session.weights.n_bytes == resident
    drain = Machine.drain

    def interrupted(machine: Machine) -> None:
        drain(machine)
        if session.weights.n_bytes > resident:
            raise KeyboardInterrupt

    session.reset()
    monkeypatch.setattr(Machine, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.prefill(PROMPT)
    assert session.weights.n_bytes == resident
