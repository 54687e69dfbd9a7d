from __future__ import annotations

import pytest

from kbench.core import OPS, Device, Problem, UserError, work


def test_key_round_trip() -> None:
    problem = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)
    assert problem.key == "linear(quant=Q4_K,n=1536,k=5120,tokens=1)"
    assert Problem.parse(problem.key) == problem
    assert problem.replace(tokens=8)["tokens"] == 8
    assert hash(Problem.parse(problem.key)) == hash(problem)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("linaer(n=1)", "did you mean linear?"),
        ("linear(n=1,k=2)", "quant, n, k, tokens"),
        ("linear", "op(name=value,...)"),
        ("add(d=4,tokens=1,threads=2)", "d, tokens"),
    ],
)
def test_a_wrong_key_says_what_is_accepted(key: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")):
        Problem.parse(key)


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_work(op: str) -> None:
    texts = {"quant": "Q8_0", "quant_gate": "Q8_0", "quant_up": "Q8_0", "quant_down": "Q8_0", "kv": "f16"}
    texts |= {"quant_k": "Q8_0", "quant_v": "Q8_0", "src": "cpu", "dst": "cuda:0"}
    one, two = (
        work(Problem.make(op, **{name: texts.get(name, tokens if name == "tokens" else 32) for name in OPS[op]}))
        for tokens in (1, 2)
    )
    assert one.flops >= 0 and one.bytes_touched >= 0
    # Twice the tokens: never less work, and never more than twice the bytes.
    assert one.flops <= two.flops and one.bytes_touched <= two.bytes_touched <= 2 * one.bytes_touched


def test_the_intensities_that_motivate_placement() -> None:
    """KTransformers' figures for DeepSeek-V2: MLA 512 (without the elements that carry positions), MoE 0.075."""
    context = 1 << 20
    mla = work(Problem.make("mla_attention", heads=128, kv_lora=512, rope=64, kv="bf16", tokens=1, context=context))
    assert mla.ai_resident == pytest.approx(483.6, abs=0.05)
    assert mla.flops / mla.resident_bytes == pytest.approx(241.8, abs=0.05)
    moe = Problem.make(
        "moe_experts", experts=160, top_k=6, n=1536, k=5120, quant_gate="Q4_K", quant_up="Q4_K", quant_down="Q6_K",
        tokens=1,
    )  # fmt: skip
    assert work(moe).ai_resident == pytest.approx(0.075)
    # One token touches exactly top_k experts: 2 x 4,423,680 + 6,451,200 bytes each.
    assert work(moe).weight_bytes == pytest.approx(6 * (2 * 4_423_680 + 6_451_200))


def test_linear_work_is_the_textbook_count() -> None:
    w = work(Problem.make("linear", quant="Q4_K", n=16, k=256, tokens=3))
    assert w.flops == 2 * 16 * 256 * 3
    assert w.weight_bytes == 16 * 144
    assert w.activation_bytes == 4 * 3 * (16 + 256)


def test_attention_is_causal() -> None:
    """Three new tokens after five cached ones see 6, 7 and 8 keys."""
    w = work(Problem.make("attention", heads=4, kv_heads=2, d=8, kv="f32", tokens=3, context=8))
    assert w.flops == 2 * 4 * (8 + 8) * (6 + 7 + 8)


@pytest.mark.parametrize(("text", "device"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_devices(text: str, device: str) -> None:
    assert str(Device.parse(text)) == device


def test_a_wrong_device_is_told() -> None:
    with pytest.raises(UserError, match="cpu, cuda, cuda:N"):
        Device.parse("gpu")
