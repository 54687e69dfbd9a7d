"""Meaning of the operations, against Hugging Face transformers and against brute force."""

from __future__ import annotations

import math
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from kbench.core import CPU, OPS, OpCall, Problem, UserError, Value, Work, quant, work
from kbench.kernels import (
    WEIGHT_TYPES,
    Cache,
    StepState,
    WeightData,
    dequantize,
    example,
    implementation,
    implementations,
    op_spec,
    random_weight,
    rope_frequencies,
)

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(7)


def stored(array: np.ndarray, name: str = "w") -> WeightData:
    array = np.ascontiguousarray(array, np.float32)
    return WeightData(name, "F32", array.shape[::-1], array.reshape(-1).view(np.uint8))


def run(key: str, weights, inputs, *, state=None, width: int = 0, **attrs) -> list[np.ndarray]:
    problem = Problem.parse(key)
    outputs = (Value("y", width),)
    call = OpCall(problem.op, problem, "reference", CPU, "m", ("x",), outputs, ("w",) * len(weights), attrs)
    state = state or StepState(np.zeros(1, np.int32))
    return op_spec(problem.op).reference(call, weights, inputs, state, np.float64)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_random_weights_are_sane(name: str) -> None:
    """Finite, of the asked size, and nothing but what the gguf package reads."""
    weight = random_weight("w", name, (512, 64), np.random.default_rng(3))
    assert weight.raw.size == quant(name).row_bytes(512) * 64
    numbers = dequantize(weight.raw, name, 512)
    if name != "F64":
        theirs = gguf.quants.dequantize(weight.raw.reshape(64, -1), gguf.GGMLQuantizationType[name])
        np.testing.assert_array_equal(numbers, theirs)
    assert np.isfinite(numbers).all()
    assert 0.5 < numbers.std() * math.sqrt(512) < 2
    rows = np.unique(numbers, axis=0)
    assert len(rows) == 64


def test_random_weights_differ_and_repeat() -> None:
    first, second = (random_weight("w", "Q4_K", (256, 8), np.random.default_rng(s)).raw for s in (1, 2))
    assert (first != second).any()
    np.testing.assert_array_equal(first, random_weight("w", "Q4_K", (256, 8), np.random.default_rng(1)).raw)


@pytest.mark.parametrize("bias", [False, True])
def test_router_of_deepseek_v3(bias: bool) -> None:
    """noaux_tc: sigmoid, correction bias, groups by their best two, renormalised and scaled."""
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    names = [name for name in ("DeepseekV3TopkRouter",) if hasattr(modeling, name)]
    if not names:
        pytest.skip("this transformers has no DeepseekV3TopkRouter")
    k, experts, top_k = 24, 32, 5
    attrs = {"scoring": "sigmoid", "n_group": 8, "topk_group": 3, "norm_topk_prob": 1, "routed_scaling": 2.5}
    weight = RNG.standard_normal((experts, k))
    correction = RNG.uniform(-0.3, 0.3, experts) if bias else np.zeros(experts)
    x = RNG.standard_normal((11, k)).astype(np.float32)
    ids, scores = run(
        f"moe_router(quant=F32,experts={experts},top_k={top_k},k={k},tokens=11)",
        [stored(weight), stored(correction, "b")],
        [x],
        **attrs,
    )
    theirs_ids, theirs_scores = brute_noaux_tc(x, weight, correction, top_k, 8, 3, 2.5)
    config = SimpleNamespace(
        num_experts_per_tok=top_k, n_routed_experts=experts, routed_scaling_factor=2.5, n_group=8, topk_group=3,
        norm_topk_prob=True, hidden_size=k, num_local_experts=experts,
    )  # fmt: skip
    try:
        router = modeling.DeepseekV3TopkRouter(config)
        router.weight.data = torch.from_numpy(weight.astype(np.float32))
        router.e_score_correction_bias = torch.from_numpy(correction.astype(np.float32))
        answer = router(torch.from_numpy(x)[None])
    except (TypeError, AttributeError):
        answer = None  # the class changed its ways; the brute force below remains
    if isinstance(answer, tuple) and len(answer) == 3:
        theirs_scores, theirs_ids = (t.detach().numpy() for t in answer[1:])
    for token in range(11):
        mine = dict(zip(ids[token].tolist(), scores[token].tolist(), strict=True))
        right = dict(zip(theirs_ids[token].tolist(), theirs_scores[token].tolist(), strict=True))
        assert mine.keys() == right.keys()
        for expert, score in right.items():
            assert mine[expert] == pytest.approx(score, rel=1e-5)


def brute_noaux_tc(x, weight, correction, top_k, n_group, topk_group, scaling):
    """Token by token, expert by expert."""
    ids, scores = [], []
    for row in x.astype(np.float64):
        s = [1 / (1 + math.exp(-float(w @ row))) for w in weight]
        c = [a + b for a, b in zip(s, correction.tolist(), strict=True)]
        size = len(s) // n_group
        groups = sorted(range(n_group), key=lambda g: -sum(sorted(c[g * size : (g + 1) * size])[-2:]))[:topk_group]
        allowed = [e for e in range(len(s)) if e // size in groups]
        chosen = sorted(allowed, key=lambda e: -c[e])[:top_k]
        ids.append(chosen)
        scores.append([scaling * s[e] / sum(s[o] for o in chosen) for e in chosen])
    return np.array(ids), np.array(scores)


def test_router_of_deepseek_v2() -> None:
    """Group-limited greedy: softmax, groups by their best one, scaled and not renormalised."""
    k, experts, top_k, n_group, topk_group = 16, 20, 3, 5, 2
    weight, x = RNG.standard_normal((experts, k)), RNG.standard_normal((6, k)).astype(np.float32)
    ids, scores = run(
        f"moe_router(quant=F32,experts={experts},top_k={top_k},k={k},tokens=6)", [stored(weight)], [x],
        scoring="softmax", n_group=n_group, topk_group=topk_group, norm_topk_prob=0, routed_scaling=16.0,
    )  # fmt: skip
    for token, row in enumerate(x.astype(np.float64)):
        e = np.exp(weight.astype(np.float32).astype(np.float64) @ row)
        p = (e / e.sum()).tolist()
        groups = sorted(range(n_group), key=lambda g: -max(p[g * 4 : g * 4 + 4]))[:topk_group]
        chosen = sorted((i for i in range(experts) if i // 4 in groups), key=lambda i: -p[i])[:top_k]
        assert ids[token].tolist() == chosen
        np.testing.assert_allclose(scores[token], [16 * p[i] for i in chosen], rtol=1e-9)


def test_rope_rotates_as_transformers_does() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    heads, d, position, tokens = 3, 16, 100, 4
    x = RNG.standard_normal((tokens, heads * d)).astype(np.float32)
    state = StepState(np.zeros(tokens, np.int32), position)
    ours = run(f"rope(heads={heads},d={d},tokens={tokens})", [], [x], state=state, mode="neox", head_dim=d)[0]
    inv_freq, _ = rope_frequencies({}, d)
    angles = np.outer(np.arange(position, position + tokens), inv_freq.astype(np.float64))
    cos, sin = (torch.from_numpy(np.concatenate([f(angles)] * 2, -1))[None] for f in (np.cos, np.sin))
    q = torch.from_numpy(x.astype(np.float64)).reshape(1, tokens, heads, d).transpose(1, 2)
    theirs, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    np.testing.assert_allclose(ours, theirs.transpose(1, 2).reshape(tokens, -1).numpy(), atol=1e-12)
    # "norm" is the same rotation with a head's pairs side by side.
    halves = x.reshape(tokens, heads, 2, d // 2)
    pairs = np.ascontiguousarray(halves.swapaxes(-1, -2)).reshape(tokens, -1)
    norm = run(f"rope(heads={heads},d={d},tokens={tokens})", [], [pairs], state=state, mode="norm", head_dim=d)[0]
    back = norm.reshape(tokens, heads, d // 2, 2).swapaxes(-1, -2).reshape(tokens, -1)
    np.testing.assert_allclose(back, ours, atol=1e-12)


def test_rope_turns_the_last_elements_only() -> None:
    x = RNG.standard_normal((2, 3 * 12)).astype(np.float32)
    state = StepState(np.zeros(2, np.int32), 5)
    y = run("rope(heads=3,d=4,tokens=2)", [], [x], state=state, mode="norm", head_dim=12)[0].reshape(2, 3, 12)
    np.testing.assert_array_equal(y[..., :8], x.reshape(2, 3, 12)[..., :8])
    assert (y[..., 8:] != x.reshape(2, 3, 12)[..., 8:]).all()


def test_attention_is_transformers_eager_attention() -> None:
    """A prompt in two chunks, by the definition of the Llama model."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    heads, kv_heads, d, tokens = 6, 2, 8, 7
    q, k, v = (RNG.standard_normal((tokens, n * d)).astype(np.float32) for n in (heads, kv_heads, kv_heads))
    cache = Cache(np.zeros((kv_heads, 9, d), np.float32), np.zeros((kv_heads, 9, d), np.float32))
    parts = []
    for begin, end in ((0, 4), (4, 7)):
        state = StepState(np.zeros(end - begin, np.int32), begin, {3: cache})
        key = f"attention(heads={heads},kv_heads={kv_heads},d={d},kv=f32,tokens={end - begin},context={end})"
        parts += run(key, [], [a[begin:end] for a in (q, k, v)], state=state, layer=3, scale=0.3)
    shaped = [torch.from_numpy(a.astype(np.float64)).reshape(1, tokens, -1, d).transpose(1, 2) for a in (q, k, v)]
    mask = torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)[None, None]
    module = SimpleNamespace(num_key_value_groups=heads // kv_heads, training=False)
    theirs, _ = llama.eager_attention_forward(module, *shaped, mask, scaling=0.3)
    # transformers takes the softmax in float32 whatever the type of the scores
    np.testing.assert_allclose(np.concatenate(parts), theirs.reshape(tokens, -1).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="cache of 9"):
        state = StepState(np.zeros(1, np.int32), 9, {3: cache})
        key = f"attention(heads={heads},kv_heads={kv_heads},d={d},kv=f32,tokens=1,context=10)"
        run(key, [], [a[:1] for a in (q, k, v)], state=state, layer=3)


NATIVE = [item.name for item in implementations() if item.name.startswith("cpu.") and item.runnable().ok]


@pytest.mark.parametrize("item", ["reference", "torch", *NATIVE])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 40, 1000])
def test_attention_with_window_and_sinks_is_that_of_gpt_oss(item: str, window: int) -> None:
    """Chunks and single tokens, by the definition of transformers' gpt-oss and its mask; window 0: full attention."""
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    masking = pytest.importorskip("transformers.masking_utils")
    heads, kv_heads, d, tokens = 6, 2, 32, 90
    q, k, v = (RNG.standard_normal((tokens, n * d)).astype(np.float32) for n in (heads, kv_heads, kv_heads))
    sinks = stored(RNG.standard_normal(heads) * 2)
    cache = Cache(np.zeros((kv_heads, tokens, d), np.float32), np.zeros((kv_heads, tokens, d), np.float32))
    parts, chosen = [], implementation(item)
    for begin, end in ((0, 3), (3, 70), (70, 71), (71, 90)):
        problem = Problem.make(
            "attention", heads=heads, kv_heads=kv_heads, d=d, kv="f32", tokens=end - begin, context=end, window=window
        )
        call = OpCall("attention", problem, item, CPU, "m", ("q", "k", "v"), (Value("y", heads * d),), ("w",),
                      {"layer": 0, "scale": 0.3})  # fmt: skip
        state = StepState(np.zeros(end - begin, np.int32), begin, {0: cache})
        prepared = chosen.prepare(problem, [sinks])
        parts += chosen.run(call, prepared, [a[begin:end] for a in (q, k, v)], state, 2)
    visible = masking.causal_mask_function
    if window:
        visible = masking.sliding_window_causal_mask_function(window)
    positions = torch.arange(tokens)
    seen = visible(0, 0, positions[:, None], positions[None])
    mask = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(~seen, -math.inf)
    shaped = [torch.from_numpy(a.astype(np.float64)).reshape(1, tokens, -1, d).transpose(1, 2) for a in (q, k, v)]
    module = SimpleNamespace(num_key_value_groups=heads // kv_heads, training=False)
    module.sinks = torch.from_numpy(sinks.raw.view(np.float32).astype(np.float64))
    theirs, _ = gpt_oss.eager_attention_forward(module, *shaped, mask[None, None], scaling=0.3)
    # Scores of 32 products of deviation 0.3 * sqrt(32), float32: 1e-6, and weights as much.
    np.testing.assert_allclose(np.concatenate(parts), theirs.reshape(tokens, -1).numpy(), rtol=1e-5, atol=2e-6)


def test_a_window_costs_what_it_sees() -> None:
    key = "attention(heads=1,kv_heads=1,d=1,kv=f32,tokens={},context={}{})"

    def cost(tokens: int, context: int, window: int = 0) -> Work:
        return work(Problem.parse(key.format(tokens, context, f",window={window}" if window else "")))

    for tokens, context, window in [(1, 9, 3), (4, 4, 2), (4, 9, 3), (5, 7, 4), (3, 5, 5), (3, 5, 9), (2, 6, 5)]:
        pairs = sum(min(p + 1, window) for p in range(context - tokens, context))
        assert cost(tokens, context, window).flops == 4 * pairs
        assert cost(tokens, context, window).cache_bytes == 8 * (min(context, window + tokens - 1) + tokens)
    assert cost(3, 5, 5) == cost(3, 5) and Problem.parse(key.format(3, 5, "")).key == key.format(3, 5, "")


@pytest.mark.parametrize("split", [False, True])
def test_absorbed_mla_is_decompressed_attention(split: bool) -> None:
    """Queries carried into the latent space attend to it as keys and values expanded per head would."""
    heads, nope, rope, kv_lora, vd, tokens = 3, 6, 4, 8, 5, 4
    kv_b = RNG.standard_normal((heads, nope + vd, kv_lora)).astype(np.float32)
    q = RNG.standard_normal((tokens, heads, nope + rope)).astype(np.float32)
    latent = RNG.standard_normal((tokens, kv_lora + rope)).astype(np.float32)
    key = "head_linear(quant=F32,heads={},n={},k={},tokens={})"
    whole = [stored(kv_b.reshape(-1, kv_lora))]
    k_b = [stored(kv_b[:, :nope].swapaxes(1, 2))] if split else whole
    v_b = [stored(kv_b[:, nope:])] if split else whole
    width = heads * (kv_lora + rope)
    absorbed = run(key.format(heads, kv_lora, nope, tokens), k_b, [q.reshape(tokens, -1)], width=width, half="k")[0]
    cache = Cache(np.zeros((1, tokens, kv_lora + rope), np.float32), np.zeros((1, 0, 0), np.float32))
    state = StepState(np.zeros(tokens, np.int32), 0, {0: cache})
    mla = f"mla_attention(heads={heads},kv_lora={kv_lora},rope={rope},kv=f32,tokens={tokens},context={tokens})"
    y = run(mla, [], [absorbed.astype(np.float32), latent], state=state, layer=0, scale=0.25)[0]
    out = run(key.format(heads, vd, kv_lora, tokens), v_b, [y.astype(np.float32)], width=heads * vd, half="v")[0]
    for t in range(tokens):
        for h in range(heads):
            scores = []
            for s in range(t + 1):
                c, r = latent[s, :kv_lora].astype(np.float64), latent[s, kv_lora:]
                scores.append(0.25 * (q[t, h, :nope] @ (kv_b[h, :nope] @ c) + q[t, h, nope:] @ r))
            p = np.exp(np.array(scores) - max(scores))
            expected = sum(w * (kv_b[h, nope:] @ latent[s, :kv_lora]) for s, w in enumerate(p / p.sum()))
            np.testing.assert_allclose(out[t, h * vd : (h + 1) * vd], expected, rtol=1e-4, atol=1e-5)


def test_rms_norm_passes_on_what_is_behind() -> None:
    x = RNG.standard_normal((3, 10)).astype(np.float32)
    weight = np.linspace(0.5, 1.5, 6)
    y = run("rms_norm(d=6,rows=1,tokens=3)", [stored(weight)], [x], eps=1e-5, row_width=10)[0]
    ours = torch.nn.functional.rms_norm(torch.from_numpy(x[:, :6]), (6,), torch.from_numpy(weight).float(), 1e-5)
    np.testing.assert_allclose(y[:, :6], ours.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(y[:, 6:], x[:, 6:])


def test_experts_are_the_sum_over_tokens_and_slots() -> None:
    key = "moe_experts(experts=5,top_k=2,n=32,k=64,quant_gate=Q8_0,quant_up=Q4_0,quant_down=Q4_1,tokens=4)"
    case = example(Problem.parse(key), np.random.default_rng(0))
    got = op_spec("moe_experts").reference(case.call, case.weights, case.inputs, case.state)[0]
    gate, up, down = (
        torch.from_numpy(dequantize(w.raw, w.quant, w.shape[0]).astype(np.float64).reshape(w.shape[::-1]))
        for w in case.weights
    )
    x, ids, scores = (torch.from_numpy(a) for a in case.inputs)
    for t in range(4):
        row, total = x[t].double(), 0
        for e, s in zip(ids[t].tolist(), scores[t].tolist(), strict=True):
            total = total + s * down[e] @ (torch.nn.functional.silu(gate[e] @ row) * (up[e] @ row))
        np.testing.assert_allclose(got[t], total.numpy(), rtol=1e-9, atol=1e-12)


def test_an_example_can_make_some_experts_only() -> None:
    key = "moe_experts(experts=160,top_k=6,n=32,k=32,quant_gate=Q4_0,quant_up=Q4_0,quant_down=Q4_0,tokens=3)"
    case = example(Problem.parse(key), np.random.default_rng(0), expert_subset=8)
    assert case.call.problem.integer("experts") == 8
    assert case.weights[0].shape == (32, 32, 8)
    assert case.inputs[1].max() < 8


def test_specs() -> None:
    hashes = {op_spec(op).hash for op in OPS}
    assert len(hashes) == len(OPS)
    with pytest.raises(UserError, match="did you mean linear"):
        op_spec("liner")
