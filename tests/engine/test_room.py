"""What is foretold of memory before loading, against what a session then takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny

from kbench.core import CPU, Device, OverBudget, Phase, Placement
from kbench.engine import Session, load_model, loader, planned_needs, room
from kbench.engine.weights import WeightStore
from kbench.model import build_tree, describe_gguf, embedded, kv_bytes_per_token, open_gguf, synthesize
from kbench.rules import load_rules

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
ALIAS = {GPU: CPU, GPU1: CPU}
OPTIONS: dict[str, Any] = {"kv": "f16", "context": 200, "chunk": 32, "threads": 1, "alias": ALIAS}
REFERENCE = Placement(generate_op="reference", prefill_op="reference")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("room") / "deepseek.gguf"
    synthesize(make_tiny("deepseek2", "Q8_0"), path, seed=4)
    return path


def load(path: Path, monkeypatch: pytest.MonkeyPatch, *given: Any, **options: Any) -> tuple[Session, room.Need]:
    """A session, and what was foretold for the only memory that there is."""
    told: dict[Device, room.Need] = {}
    monkeypatch.setattr(loader, "check_room", lambda needs, context: told.update(needs))
    session = load_model(path, *given, **OPTIONS | options)
    assert list(told) == [CPU]
    return session, told[CPU]


def test_the_program_for_few_tokens_behind_a_long_past_is_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, need = load(path, monkeypatch, default=REFERENCE)
    assert need.weights >= session.weights.n_bytes
    session.prefill([5] * 150)
    session.prefill([1, 2])
    assert session._few is not None  # otherwise this test shows nothing
    assert session.weights.n_bytes <= need.weights
    programs = (session._decode, session._prefill, session._few)
    assert need.workspace == sum(program.n_bytes for program in programs) == session.report.workspace_bytes
    assert need.cache * session.cache.capacity == session.cache.n_bytes


@pytest.mark.parametrize("options", [{}, {"sequences": 3}, {"sequences": 3, "cache_tokens": 300}])
def test_pages_are_counted_whole(path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """A device that stands for a GPU keeps its caches as one would: in pages."""
    pytest.importorskip("torch")
    on_gpu = Placement(GPU, "torch", GPU, "torch")
    session, need = load(path, monkeypatch, default=on_gpu, **options)
    pages = {1: 4, 3: 5 if "cache_tokens" in options else 12}[options.get("sequences", 1)]
    model = session.descriptor
    assert session.cache.n_bytes == pages * 64 * kv_bytes_per_token(model, "f16")
    assert need.cache * 200 + need.fixed_cache == session.cache.n_bytes == session.report.kv_bytes


def test_a_layer_that_is_swapped_in_is_counted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "kbench: 1\nrules:\n- match: {name: '^model$'}\n"
        "  replace: {class: Model, kwargs: {per_layer_prefill_intput_threshold: 8}}\n"
        "- match: {name: '^model\\.layers.*\\.mlp'}\n  replace: {kwargs: {generate_device: cpu, generate_op: torch,\n"
        "            prefill_device: 'cuda:0', prefill_op: torch}}\n"
    )
    session, need = load(path, monkeypatch, load_rules(file), default=REFERENCE)
    resident, most = session.weights.n_bytes, 0
    prepare = WeightStore.prepare

    def watched(store: WeightStore, *args: Any) -> int:
        nonlocal most
        done = prepare(store, *args)
        most = max(most, store.n_bytes)
        return done

    monkeypatch.setattr(WeightStore, "prepare", watched)
    session.prefill([5] * 20)
    assert resident < most <= resident + need.swapped and session.weights.n_bytes == resident
    assert need.swapped <= 1.3 * (most - resident)
    assert need.workspace >= session._layerwise[1](200).n_bytes  # type: ignore[index]
    monkeypatch.undo()
    fixed = need.weights + need.swapped + need.workspace + need.cache * 200 + room._MARGIN_BYTES
    monkeypatch.setattr(room, "available_bytes", lambda: fixed - 1)
    with pytest.raises(OverBudget, match="one layer swapped in"):
        load_model(path, load_rules(file), default=REFERENCE, **OPTIONS)
    monkeypatch.setattr(room, "available_bytes", lambda: fixed)
    load_model(path, load_rules(file), default=REFERENCE, **OPTIONS)


def test_a_cache_is_counted_where_its_attention_lies(path: Path) -> None:
    """By device, and twice where the phases attend on different ones; on another host it is that one's."""
    model = describe_gguf(open_gguf(path))
    a_layer = kv_bytes_per_token(model, "f16") // model.n_layers * 100
    first, far = Placement(GPU, "auto", GPU1, "auto"), Device("cpu", 0, 1)
    placed = {
        module.name: first
        if ".layers.0.self_attn" in module.name
        else Placement(far, prefill_device=far)
        if ".layers.1." in module.name
        else Placement()
        for module in build_tree(model).walk()
    }
    found = planned_needs(model, placed, 100, "f16", 32)
    caches = {device: lines["cache for 100 tokens"] for device, lines in found.items()}
    in_pages = a_layer * 128 // 100  # two of 64 tokens
    assert caches == {GPU: in_pages, GPU1: in_pages, far: a_layer, CPU: a_layer * (model.n_layers - 2)}
    assert all(lines["workspace"] > 0 for lines in found.values())


def test_programs_that_a_conversation_can_come_to_need(path: Path) -> None:
    model = describe_gguf(open_gguf(path))
    plain = room.programs(dataclasses.replace(model, mla=None), 4, 4)
    assert [(one.phase, one.tokens) for one in plain] == [(Phase.DECODE, 1), (Phase.PREFILL, 4)]
    every = room.programs(model, 9000, 256, threshold=1000)
    assert [(one.tokens, one.swaps) for one in every] == [(1, False), (256, False), (64, False), (4096, True)]
    assert not any(one.swaps for one in room.programs(model, 1000, 256, threshold=1000))
    # In a ring a prompt can be longer than the context.
    assert any(one.swaps for one in room.programs(model, 1000, 256, threshold=1000, overflow="ring"))


def test_layers_with_a_state_instead_of_a_cache_are_counted_as_such() -> None:
    model, context = embedded("qwen3-next"), 4096
    lines = planned_needs(model, {}, context, "f16", 256)[CPU]
    states = model.n_layers - sum(map(model.attends, range(model.n_layers)))
    a_state = 4 * (32 * 128 * 128 + 3 * 8192)
    assert lines["cache for 4096 tokens"] == context * kv_bytes_per_token(model, "f16") + states * a_state
