"""Operations, their problems, and the calls that a model is lowered to.

``OPS`` is the one list of operations. ``d`` and ``n`` are output widths, ``k`` the reduction length,
``tokens`` the tokens in this call, ``context`` the cached tokens that attention sees, this call's included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import UserError, did_you_mean
from .placement import Block, Device

# Operation -> its parameters in the order in which keys spell them.
OPS: dict[str, tuple[str, ...]] = {
    # rows of the embedding matrix: [tokens] -> [tokens, d]
    "embedding": ("quant", "vocab", "d", "tokens"),
    # `rows` vectors of width d per token (1 for the hidden state, the head count for q_norm and k_norm)
    "rms_norm": ("d", "rows", "tokens"),
    # x[tokens, k] @ W[n, k].T (+ bias)
    "linear": ("quant", "n", "k", "tokens"),
    # one matrix per head: x[tokens, heads, k] @ W[heads, n, k].T (MLA's absorbed projections)
    "head_linear": ("quant", "heads", "n", "k", "tokens"),
    # rotates the last `d` elements of each of `heads` vectors
    "rope": ("heads", "d", "tokens"),
    # grouped-query attention; appends this call's k and v to the cache first. A token at position p sees positions
    # [max(0, p - window + 1), p]; all from 0 on where window is 0. A weight [heads], if there is one: sinks, scores
    # that join the softmax of each of a head's rows without bringing a value
    "attention": ("heads", "kv_heads", "d", "kv", "tokens", "context", "window"),
    # multi-head latent attention, absorbed: heads share one cached latent of kv_lora + rope elements a token
    "mla_attention": ("heads", "kv_lora", "rope", "kv", "tokens", "context", "window"),
    # the same, decompressed: the latent is multiplied out to every head's keys (nope) and values (v) on the way
    "mla_decompressed": (
        "quant_k",
        "quant_v",
        "heads",
        "kv_lora",
        "rope",
        "nope",
        "v",
        "kv",
        "tokens",
        "context",
        "window",
    ),
    # silu(gate) * up
    "silu_mul": ("n", "tokens"),
    # residual: x + y
    "add": ("d", "tokens"),
    # x + sigmoid(h . w) * y: the shared expert's output, weighed by the token that it was made of
    "gated_add": ("d", "tokens"),
    # hidden -> top_k expert ids and weights. Behind the matrix: a bias of the logits where attribute `logit_bias` says
    # so, then what corrects the choice and not the weights
    "moe_router": ("quant", "experts", "top_k", "k", "tokens"),
    # ids and weights of top_k out of `experts`, for whoever has `here` of them, those of attribute `experts`, and
    # cannot leave a choice out: ids become places among these, and a choice that lies elsewhere weighs 0 and goes where
    # its token goes anyway, so that nothing is read for it (place 0 where none of its choices is here)
    "expert_map": ("experts", "here", "top_k", "tokens"),
    # routed experts: gate, up [n, k] and down [k, n] of top_k out of `experts`, weighted sum; three more weights are
    # biases [experts, rows]. Attribute `activation`: silu, or clamped_swiglu with `alpha` and `limit`. Of a layer whose
    # experts lie on several devices, attribute `experts` lists those that the weights are cut down to. Ids are places
    # among them, which `experts` counts; or, with attribute `masked`, the router's own: `experts` then counts the whole
    # layer's, and a choice that is not in the list adds nothing
    "moe_experts": ("experts", "top_k", "n", "k", "quant_gate", "quant_up", "quant_down", "tokens"),
    # keeps the last token's row only: logits are wanted for it alone
    "take_last": ("d", "tokens"),
    # the `top_k` largest of `vocab` logits, largest first: ids and values, what sampling chooses from
    "top_logits": ("vocab", "top_k", "tokens"),
    # moves `d` elements a token from one device to another
    "transfer": ("d", "src", "dst", "tokens"),
}

# Parameters that may be left out, and what that means: keys do not spell that value.
OPTIONAL: dict[str, dict[str, int]] = {op: {"window": 0} for op in ("attention", "mla_attention", "mla_decompressed")}

# Operations that are priced and placed, but that nothing here runs yet: they have no definition.
PLANNED: dict[str, tuple[str, ...]] = {
    # linear attention by the gated delta rule: a short convolution over q, k and v, then for each value head a state
    # [key_dim, value_dim] in float32 that decays, is corrected and is read
    "delta_rule": ("key_heads", "key_dim", "value_heads", "value_dim", "conv", "tokens"),
    # x * sigmoid(gate): attention whose output the token itself weighs
    "sigmoid_mul": ("n", "tokens"),
}

# A module that somebody's own operator does: no operation of ours, so it has no definition, and no suite can time it.
# k and n are the elements a token that go in and come out.
INJECTED = "injected"
# Parameters that are words, beside those that begin with `quant`; all others are numbers.
_WORDS = ("kv", "src", "dst", "operator")
# Of a number in a key: beyond these it is none that a shape could be.
_MAX_DIGITS = 18
_PARAMS = {**OPS, **PLANNED, INJECTED: ("operator", "k", "n", "tokens")}


def is_word(parameter: str) -> bool:
    """Whether ``parameter`` of an operation is a word, such as a storage type; else it is a number."""
    return parameter in _WORDS or parameter.startswith("quant")


_KEY = re.compile(r"(\w+)\((.*)\)")


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation with its shapes and types; hashable, ordered like ``OPS`` spells it."""

    op: str
    values: tuple[int | str, ...]

    @classmethod
    def make(cls, op: str, **params: int | str) -> Problem:
        """Problem of ``op``; every parameter but the optional ones must be given, and no other."""
        names = _PARAMS.get(op)
        if names is None:
            raise UserError(f"unknown op {op!r}", accepted=", ".join(OPS), todo=did_you_mean(op, OPS))
        params = {**OPTIONAL.get(op, {}), **params}
        if set(names) != set(params):
            raise UserError(f"{op} got parameters {', '.join(sorted(params))}", accepted=", ".join(names))
        return cls(op, tuple(params[name] for name in names))

    @classmethod
    def parse(cls, key: str) -> Problem:
        """The inverse of ``key``; extra parameters such as ``threads``, and words in place of numbers, are refused."""
        match = _KEY.fullmatch(key.strip())
        if match is None:
            raise UserError(f"{key!r} is no problem", accepted="op(name=value,...)")
        pairs = [item.partition("=") for item in match[2].split(",") if item]
        params: dict[str, int | str] = {}
        for name, text in ((k.strip(), v.strip()) for k, _, v in pairs):
            is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
            params[name] = int(text) if is_number else text
        found = cls.make(match[1], **params)
        for name, value in params.items():
            if isinstance(value, str) and not is_word(name):
                raise UserError(f"{name} is {value[:40]!r}", where=key[:80], accepted="a number")
        return found

    def __getitem__(self, name: str) -> int | str:
        return self.values[_PARAMS[self.op].index(name)]

    def has(self, name: str) -> bool:
        return name in _PARAMS[self.op]

    def integer(self, name: str) -> int:
        return int(self[name])

    def text(self, name: str) -> str:
        return str(self[name])

    def replace(self, **params: int | str) -> Problem:
        return Problem.make(self.op, **{**dict(zip(_PARAMS[self.op], self.values, strict=True)), **params})

    @property
    def params(self) -> dict[str, int | str]:
        """By name, in order, without what is optional and as if it were left out."""
        left_out = OPTIONAL.get(self.op, {})
        pairs = zip(_PARAMS[self.op], self.values, strict=True)
        return {name: value for name, value in pairs if left_out.get(name) != value}

    @property
    def key(self) -> str:
        """E.g. ``linear(quant=Q4_K,n=1536,k=5120,tokens=1)``; also the filter on the command line."""
        return f"{self.op}({','.join(f'{name}={value}' for name, value in self.params.items())})"

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 (or, for expert ids, int32) array that flows between calls: ``[rows, width]``.

    ``rows`` is ``"tokens"`` for one row per token of the call, ``"one"`` for a single row.
    """

    name: str
    width: int
    rows: str = "tokens"
    dtype: str = "f32"


Attribute = int | float | str | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpCall:
    """One operation of a lowered model: what the planner prices and the engine runs.

    ``weights`` are GGUF tensor names; ``attrs`` hold numbers that change results but not cost (eps, scale, layer).
    ``inputs`` name earlier outputs, or ``$tokens`` (int32 ids) for the embedding. Pure data: no arrays.
    """

    op: str
    problem: Problem
    implementation: str
    device: Device
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    threads: int | None = None
    block: Block = field(default_factory=dict)
