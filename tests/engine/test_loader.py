"""Loading: what is packed, what is refused, and that a refusal comes first."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import make_tiny

from kbench.core import (
    CorruptFile,
    Device,
    InvalidEnvironment,
    KbenchError,
    OverBudget,
    Phase,
    Placement,
    TensorInfo,
    Unsupported,
    UserError,
)
from kbench.engine import load_model, room
from kbench.engine.memory import available_bytes
from kbench.engine.weights import WeightStore
from kbench.kernels import block_errors, implementations, random_weight
from kbench.model import GgufTensor, describe_gguf, lower, open_gguf, synthesize, with_quant
from kbench.rules import check, load_rules, read_rules

RUNNABLE = [i.name for i in implementations() if i.runnable().ok]
NATIVE = [name for name in RUNNABLE if name.startswith("cpu.")]
REFERENCE = Placement(generate_op="reference", prefill_op="reference")


@pytest.fixture()
def tiny(tiny_gguf: Path) -> Path:
    return tiny_gguf


def calls_of(path: Path, implementation: str, phase: Phase = Phase.DECODE) -> tuple[Any, ...]:
    descriptor = describe_gguf(open_gguf(path))
    return lower(descriptor, {}, phase, 1, 8, resolve=lambda problem, device: implementation)


def test_weights_are_packed_once_for_all_who_use_them(tiny_models: dict[str, tuple[Path, Any]]) -> None:
    store = WeightStore(open_gguf(tiny_models["llama"][0]))
    decode, prefill = (calls_of(store.gguf.path, "reference", phase) for phase in (Phase.DECODE, Phase.PREFILL))
    seen: list[tuple[int, int]] = []
    assert store.prepare(decode, lambda done, whole: seen.append((done, whole))) == store.gguf.tensor_bytes
    assert seen[-1] == (store.gguf.tensor_bytes, store.gguf.tensor_bytes)
    assert seen == sorted(seen)
    before = store.n_bytes
    assert store.prepare(prefill) == 0 and store.n_bytes == before
    assert all(store.of(a) is store.of(b) for a, b in zip(decode, prefill, strict=True))


@pytest.mark.parametrize("implementation", RUNNABLE)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_estimate_is_never_below_what_packing_takes(
    tiny_models: dict[str, tuple[Path, Any]], implementation: str, name: str
) -> None:
    path = tiny_models[name][0]
    store, calls = WeightStore(open_gguf(path)), calls_of(path, implementation)
    estimate = store.estimate(calls)
    store.prepare(calls)
    assert store.n_bytes <= estimate <= 1.3 * store.n_bytes + 300_000
    assert store.estimate(calls) == 0


def test_dropped_pages_come_back_unchanged(tiny: Path) -> None:
    opened = open_gguf(tiny)
    tensor = opened.tensors["blk.0.ffn_up.weight"]
    before = np.array(tensor.raw)
    store = WeightStore(opened)
    store.prepare(calls_of(tiny, "reference"))
    assert tensor.raw.nbytes > 2 * mmap.PAGESIZE
    np.testing.assert_array_equal(tensor.raw, before)


def test_too_little_memory_is_refused_before_anything_is_packed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 300 << 20)
    monkeypatch.setattr(WeightStore, "prepare", lambda *_: pytest.fail("packed"))
    with pytest.raises(OverBudget) as caught:
        load_model(tiny, default=REFERENCE, context=1 << 20)
    message = caught.value.message
    # 3 layers x 2 heads x 16 wide, keys and values in f16: 384 bytes a token.
    assert "short" in message and "cache for 1048576 tokens 384 MiB" in message and "300 MiB are free" in message
    assert caught.value.exit_code == 1


def test_a_refusal_names_the_largest_context_that_fits(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 300 << 20)
    with pytest.raises(OverBudget) as caught:
        load_model(tiny, default=REFERENCE, context=1 << 20)
    fits = int(caught.value.accepted.rpartition(" ")[2])
    assert caught.value.todo == f"use --context {fits} or less" and 50_000 < fits < 120_000
    assert load_model(tiny, default=REFERENCE, context=fits).cache.capacity == fits
    with pytest.raises(OverBudget):
        load_model(tiny, default=REFERENCE, context=fits + 1)
    monkeypatch.setattr(room, "available_bytes", lambda: 200 << 20)
    with pytest.raises(OverBudget) as caught:
        load_model(tiny, default=REFERENCE, context=1)
    assert "without any cache it does not fit either" in caught.value.todo


def test_a_gpu_that_is_not_there_is_an_environment_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for placement in (Placement(Device("cuda"), "torch", Device("cuda"), "torch"), Placement(Device("cuda", 1))):
        with pytest.raises(InvalidEnvironment, match="no CUDA device") as caught:
            load_model(tiny, {"model.layers.1.mlp.up_proj": placement}, default=REFERENCE)
        assert caught.value.todo and caught.value.exit_code == 4


def test_an_implementation_that_cannot_take_a_matrix_is_an_error_not_something_slower(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbench.kernels import Support, implementation

    def refuse(self: object, problem: Any) -> Support:
        return Support(not (problem.has("quant") and problem["quant"] == "Q4_1"), "no Q4_1 here")

    monkeypatch.setattr(type(implementation("torch")), "supports", refuse)
    with pytest.raises(Unsupported, match=r"torch does not take linear.*no Q4_1 here") as caught:
        load_model(smollm2_path, default=Placement(generate_op="torch", prefill_op="torch"))
    assert caught.value.where == "model.layers.0.self_attn.q_proj: linear" and "auto" in caught.value.todo


def test_an_implementation_for_matrices_leaves_the_rest_to_the_best(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbench.kernels import Support, best, implementation

    def only_matrices(self: object, problem: Any) -> Support:
        return Support(problem.op in ("linear", "embedding"), "matrices only")

    monkeypatch.setattr(type(implementation("torch")), "supports", only_matrices)
    best.cache_clear()
    session = load_model(tiny, default=Placement(generate_op="torch", prefill_op="torch"), context=32)
    best.cache_clear()
    used = {call.op: call.implementation for call in session.decode_calls}
    assert used["linear"] == "torch" and used["rope"] != "torch" and used["rms_norm"] != "torch"
    session.prefill([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"context": 0}, "context"),
        ({"context": -5}, "context"),
        ({"context": 1 << 30}, "context"),
        ({"threads": 0}, "threads"),
        ({"threads": 5000}, "threads"),
        ({"prefill_threads": 0}, "prefill_threads"),
        ({"kv": "q4"}, "kv"),
        ({"kv": "q8"}, "kv"),
    ],
)
def test_nonsense_is_refused_by_name(tiny: Path, options: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError) as caught:
        load_model(tiny, default=REFERENCE, **options)
    assert caught.value.where == where and caught.value.accepted


def test_a_typo_in_an_implementation_is_named(tiny: Path) -> None:
    with pytest.raises(UserError, match="did you mean torch"):
        load_model(tiny, {"lm_head": Placement(generate_op="torhc")}, default=REFERENCE)


def test_a_file_that_is_not_there_and_one_cut_short(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_model(tmp_path / "none.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-100])
    with pytest.raises(CorruptFile, match=r"cut\.gguf"):
        load_model(cut)


def test_a_vocabulary_larger_than_the_embedding_is_refused(tiny: Path, tmp_path: Path) -> None:
    """Ids from the tokenizer index the embedding: they must not point behind it."""
    reader = gguf.GGUFReader(tiny)
    path = tmp_path / "long.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kinds = field.contents(), field.types
        if key == "tokenizer.ggml.tokens":
            writer.add_array(key, [*value, "extra"])
        elif key == "tokenizer.ggml.token_type":
            writer.add_array(key, [*value, 1])
        elif kinds[0] == gguf.GGUFValueType.ARRAY:
            if value:
                writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kinds[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(KbenchError, match="151"):
        load_model(path, default=REFERENCE)


def test_rules_place_modules(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        'kbench: 1\nrules:\n- match: {name: "^model\\\\.layers\\\\.1\\\\.mlp"}\n  replace:\n'
        "    kwargs: {generate_device: cpu, generate_op: torch, prefill_device: cpu, prefill_op: reference}\n"
    )
    session = load_model(tiny, load_rules(path), default=REFERENCE, context=32)
    decode = {call.module: call.implementation for call in session.decode_calls}
    prefill = {call.module: call.implementation for call in session.prefill_calls}
    assert decode["model.layers.1.mlp.up_proj"] == "torch" and decode["model.layers.0.mlp.up_proj"] == "reference"
    assert set(prefill.values()) == {"reference"}


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": "1000000\n",
            "sys/fs/cgroup/a/memory.current": "900000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 300000\n",
        },
        {
            "proc/self/cgroup": "0::/not/visible\n",
            "sys/fs/cgroup/memory.max": "1000000\n",
            "sys/fs/cgroup/memory.current": "600000\n",
        },
        {
            "proc/self/cgroup": "4:cpu:/x\n3:memory:/x\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000000\n",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "700000\n",
            "sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
        },
    ],
)
def test_a_control_groups_limit_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert available_bytes(cgroup(tmp_path, files)) == 400_000


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 1 << 20


def test_a_model_without_weights_is_planned_not_run() -> None:
    with pytest.raises(UserError, match="kbench tune DeepSeek-V2-Chat"):
        load_model("DeepSeek-V2-Chat")


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"activation_planes": 3}, "activation_planes is 3 · accepted: 1, 2"),
        ({"activation_plans": 1}, "did you mean activation_planes"),
    ],
)
def test_kernel_parameters_that_no_kernel_has(tiny_gguf: Any, block: dict[str, int], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load_model(tiny_gguf, default=Placement(generate_op="cpu.scalar", prefill_op="cpu.scalar", block=block))


def test_a_rule_files_kernel_parameters_are_told_with_their_line(tiny_gguf: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    kwargs = "{generate_device: cpu, generate_op: cpu.scalar, block: {activation_planes: 3}}"
    path.write_text(f"kbench: 1\nrules:\n- match: {{name: lm_head}}\n  replace: {{class: Linear, kwargs: {kwargs}}}\n")
    told = f"{path}:4: rule 1, replace.kwargs.block.activation_planes · activation_planes is 3 · accepted: 1, 2"
    with pytest.raises(UserError) as caught:
        load_model(tiny_gguf, load_rules(path))
    assert str(caught.value) == told
    findings = check(read_rules(path), check_block=block_errors)
    assert [str(found) for found in findings] == [told]


@pytest.mark.parametrize("split", [False, True], ids=["kv_b", "k_b and v_b"])
def test_every_form_of_kv_b_is_counted(tmp_path: Path, split: bool) -> None:
    """Absorbed for decode, decompressed for prefill: packed for each, partly in another type than it is stored in."""
    synthesize(with_quant(make_tiny("deepseek2"), "Q8_0", split_kv_b=split), tmp_path / "tiny.gguf")
    store = WeightStore(open_gguf(tmp_path / "tiny.gguf"))
    descriptor = describe_gguf(store.gguf)
    native = next((name for name in RUNNABLE if name.startswith("cpu.")), "reference")
    decompressed = {f"model.layers.{i}.self_attn": Placement(absorb_for_prefill=False) for i in range(3)}
    calls = [
        call
        for phase, tokens in ((Phase.DECODE, 1), (Phase.PREFILL, 8))
        for call in lower(descriptor, decompressed, phase, tokens, 8, resolve=lambda *_: native)
        if call.op in ("head_linear", "mla_decompressed")
    ]
    estimate = store.estimate(calls)
    store.prepare(calls)
    assert len(calls) == 9 and estimate == store.n_bytes


def in_memory(prepared: Any) -> int:
    """Bytes that the items of native weights take besides the file."""
    parts = [part for item in prepared.items for part in (item if isinstance(item, list) else [item])]
    return sum(
        part.nbytes if isinstance(part, np.ndarray) else part.n_bytes * (part.layout == "packed") for part in parts
    )


@pytest.mark.skipif(not NATIVE, reason="no native kernel")
@pytest.mark.parametrize("split", [False, True], ids=["kv_b", "k_b and v_b"])
@pytest.mark.parametrize("how", ["raw", "rare types"])
def test_what_stays_in_the_file_is_not_counted(tmp_path: Path, how: str, split: bool) -> None:
    """Because rules say so, or because there is no packing of the type; but what is turned for MLA is stored anew."""
    synthesize(with_quant(make_tiny("deepseek2"), "Q8_0", split_kv_b=split), tmp_path / "tiny.gguf")
    opened, rng = open_gguf(tmp_path / "tiny.gguf"), np.random.default_rng(0)
    if how == "rare types":
        rare = {
            name: random_weight(name, "IQ2_XXS", tensor.info.shape, rng)
            for name, tensor in opened.tensors.items()
            if tensor.info.quant == "Q8_0" and tensor.info.shape[0] % 256 == 0
        }
        infos = {name: TensorInfo(name, weight.shape, weight.quant, "") for name, weight in rare.items()}
        tensors = {name: GgufTensor(infos[name], weight.raw) for name, weight in rare.items()}
        opened = dataclasses.replace(opened, tensors={**opened.tensors, **tensors})
    store, descriptor = WeightStore(opened), describe_gguf(opened)
    decompressed = {f"model.layers.{i}.self_attn": Placement(absorb_for_prefill=False) for i in range(3)}
    block = {"layout": "raw"} if how == "raw" else {}
    calls = [
        dataclasses.replace(call, block=block)
        for phase, tokens in ((Phase.DECODE, 1), (Phase.PREFILL, 8))
        for call in lower(descriptor, decompressed, phase, tokens, 8, resolve=lambda *_: NATIVE[0])
    ]
    estimate = store.estimate(calls)
    store.prepare(calls)
    taken = sum({id(found): in_memory(found) for found in map(store.of, calls)}.values())
    assert 0 < taken < store.n_bytes // 2 and taken <= estimate <= taken + 20_000


def test_a_type_that_nothing_reads_is_told_with_its_tensor(tiny: Path) -> None:
    opened = open_gguf(tiny)
    norm = opened.tensors["blk.1.attn_norm.weight"]
    changed = dataclasses.replace(norm, info=dataclasses.replace(norm.info, quant="I32"))
    store = WeightStore(dataclasses.replace(opened, tensors={**opened.tensors, norm.info.name: changed}))
    with pytest.raises(Unsupported, match=rf"{tiny.name}: blk\.1\.attn_norm\.weight: no dequantisation of I32"):
        store.prepare(calls_of(tiny, NATIVE[0] if NATIVE else "reference"))
