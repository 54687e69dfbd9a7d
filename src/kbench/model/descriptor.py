"""A model's shapes, types and routing: everything that planning and lowering need, and no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kbench.core import Attribute, TensorInfo


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: widths per head and of the shared latent; ``q_lora`` is 0 without one."""

    q_lora: int
    kv_lora: int
    rope: int
    nope: int
    v: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Linear attention by the gated delta rule: heads and their widths, taps of the convolution before it.

    Every ``interval``-th layer attends in full, with an output that the token weighs by a sigmoid.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv: int
    interval: int

    @property
    def convolved(self) -> int:
        """Width of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Moe:
    """Routing among ``experts`` of width ``n``; ``shared`` counts the experts that every token visits.

    Those are together ``shared_n`` wide, ``shared`` times ``n`` where it is 0; ``shared_gate``: a sigmoid of the token
    weighs them.

    ``scoring`` is ``softmax`` or ``sigmoid`` (the latter with a selection bias). A token's experts come from the best
    ``topk_group`` of ``n_group`` groups. The first ``first_dense`` layers have an MLP instead.
    """

    experts: int
    top_k: int
    n: int
    shared: int
    first_dense: int
    scoring: str
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling: float
    shared_n: int = 0
    shared_gate: bool = False

    @property
    def shared_width(self) -> int:
        return self.shared_n or self.shared * self.n


@dataclass(frozen=True)
class ModelDescriptor:
    """A model. ``d`` is the hidden width, ``ffn`` the width of dense MLPs, ``quant`` a label such as ``Q4_K_M``.

    ``rope`` holds the attributes of rope calls; the first ``rotary`` elements of a head rotate, all where it is 0.
    Where ``window`` is not 0, layers attend to so many tokens, their own included, but for the last of every
    ``full_every``.
    ``tied`` says that the head uses the embedding's matrix. ``tensors`` lists every tensor with its type, ``draft``
    those of ``draft_layers`` further layers that files of the model hold: they draft tokens for speculative decoding,
    and without that nothing reads them.
    """

    name: str
    architecture: str
    quant: str
    n_layers: int
    d: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rms_eps: float
    context_length: int
    rope: Mapping[str, Attribute] = field(hash=False)
    rotary: int = 0
    window: int = 0
    full_every: int = 0
    tied: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    mla: Mla | None = None
    delta: Delta | None = None
    moe: Moe | None = None
    draft_layers: int = 0
    tensors: tuple[TensorInfo, ...] = field(default=(), repr=False)
    draft: tuple[TensorInfo, ...] = field(default=(), repr=False)

    @property
    def rotated(self) -> int:
        """Elements of a head that rotate."""
        return self.rotary or self.head_dim

    @property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors, without padding and metadata."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Bytes of all tensors of a file, those that draft included."""
        return self.n_bytes + sum(tensor.n_bytes for tensor in self.draft)

    @property
    def cached_widths(self) -> tuple[int, ...]:
        """Elements of the vectors that a token leaves in the cache: a head's key or value, or a latent's two parts."""
        return (self.head_dim,) if self.mla is None else (self.mla.kv_lora, self.mla.rope)

    @property
    def cached_heads(self) -> int:
        """Heads that a layer caches keys and values of; one latent for all of them with MLA."""
        return self.kv_heads if self.mla is None else 1

    @cached_property
    def tensors_by_name(self) -> Mapping[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def attends(self, layer: int) -> bool:
        """Whether ``layer`` attends to a cache of all tokens, and not by a state of fixed size."""
        return self.delta is None or (layer + 1) % self.delta.interval == 0

    def layer_window(self, layer: int, ring: int = 0) -> int:
        """How many tokens one sees in ``layer`` at the most, itself included; 0: all. ``ring``: the most that any layer
        sees, because the oldest leave; 0: none do."""
        own = self.window if self.window and (layer + 1) % self.full_every else 0
        return min(own or ring, ring) if ring else own

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.moe.first_dense
