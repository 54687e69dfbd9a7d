"""What the extension module offers; built from ``csrc/``."""

from typing import Any

import numpy as np
import numpy.typing as npt

_F32 = npt.NDArray[np.float32]
_I8 = npt.NDArray[np.int8]
_I32 = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_Cache = npt.NDArray[np.generic]

class Pool:
    def __init__(self, threads: int, cpus: list[int] = [], node: int = -1) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def cpus(self) -> list[int]: ...

def memory_nodes(root: str = "") -> list[tuple[int, list[int], int]]: ...
def place_threads(threads: int, allowed: list[int], node: int = -1, root: str = "") -> list[int]: ...

class Matrix:
    @property
    def format(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    def unpack_rows(self, ids: _I32) -> _F32: ...

def pack(format: str, raw: _Bytes, n: int, k: int, pool: Pool | None = None) -> Matrix: ...
def keep_raw(format: str, raw: _Bytes, n: int, k: int) -> Matrix: ...
def set_grid(format: str, values: _I8) -> None: ...
def matmul(
    isa: str,
    w: Matrix,
    x: _F32,
    bias: _F32 | None = None,
    pool: Pool | None = None,
    planes: int = 1,
    panel_tokens: int = 0,
) -> _F32: ...
def reads_words(isa: str, format: str, tokens: int, planes: int, panel_tokens: int = 0) -> bool: ...
def isas() -> list[tuple[str, str]]: ...
def isa_tests() -> dict[str, str]: ...
def kernel_sources(isa: str) -> dict[str, str]: ...
def block_parameters(isa: str, op: str = "", format: str = "", tokens: int = 0) -> list[dict[str, Any]]: ...
def read_bandwidth(pool: Pool, n_bytes: int, seconds: float) -> float: ...
def arithmetic_peak(pool: Pool, isa: str, kind: str, seconds: float) -> float: ...
def ladder_steps() -> list[tuple[str, str, str, str, bool]]: ...

class LadderMatrix:
    def __init__(self, step: str, raw: _Bytes, n: int, k: int, pool: Pool) -> None: ...
    @property
    def n_bytes(self) -> int: ...
    def run(self, x: _F32, y: _F32, pool: Pool) -> None: ...

def ladder_attention(
    split: bool,
    q: _F32,
    k: _F32,
    v: _F32,
    k_cache: _F32,
    v_cache: _F32,
    position: int,
    scale: float,
    y: _F32,
    pool: Pool,
) -> None: ...
def ladder_top_logits(partial: bool, logits: _F32, ids: _I32, values: _F32) -> None: ...

class Launch:
    @property
    def function(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def error(self) -> str: ...

class Program:
    def __init__(self, pool: Pool, arena: _Bytes, max_tokens: int, max_sequences: int = 1) -> None: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_barriers(self) -> int: ...
    @property
    def step_threads(self) -> list[int]: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def activation_planes(self) -> int: ...
    @activation_planes.setter
    def activation_planes(self, planes: int) -> None: ...
    def set_parameter(self, name: str, value: int | str) -> None: ...
    def reset_parameters(self) -> None: ...
    @property
    def threads(self) -> int: ...
    def embedding(self, isa: str, w: Matrix, y: int, threads: int = 0) -> int: ...
    def rms_norm(
        self,
        isa: str,
        x: int,
        weight: _F32,
        d: int,
        rows: int,
        eps: float,
        y: int,
        one_row: bool = False,
        row_width: int = 0,
        threads: int = 0,
    ) -> int: ...
    def linear(
        self, isa: str, w: Matrix, x: int, y: int, bias: _F32 | None = None, one_row: bool = False, threads: int = 0
    ) -> int: ...
    def rope(
        self,
        isa: str,
        x: int,
        y: int,
        heads: int,
        head_dim: int,
        d: int,
        neox: bool,
        inv_freq: _F32,
        attn_factor: float = 1.0,
        first: bool = False,
        threads: int = 0,
    ) -> int: ...
    def attention(
        self,
        isa: str,
        q: int,
        k: int,
        v: int,
        y: int,
        heads: int,
        kv_heads: int,
        d: int,
        k_cache: _Cache,
        v_cache: _Cache,
        scale: float,
        window: int = 0,
        sinks: _F32 | None = None,
        threads: int = 0,
    ) -> int: ...
    def mla_attention(
        self,
        isa: str,
        q: int,
        latent: int,
        y: int,
        heads: int,
        kv_lora: int,
        rope: int,
        cache: _Cache,
        scale: float,
        window: int = 0,
        threads: int = 0,
    ) -> int: ...
    def mla_decompressed(
        self,
        isa: str,
        k: list[Matrix],
        v: list[Matrix],
        q: int,
        latent: int,
        y: int,
        kv_lora: int,
        rope: int,
        cache: _Cache,
        scale: float,
        window: int = 0,
        threads: int = 0,
    ) -> int: ...
    def silu_mul(self, isa: str, gate: int, up: int, y: int, n: int, threads: int = 0) -> int: ...
    def add(self, isa: str, a: int, b: int, y: int, d: int, threads: int = 0) -> int: ...
    def gated_add(self, isa: str, a: int, b: int, h: int, weight: _F32, y: int, d: int, threads: int = 0) -> int: ...
    def take_last(self, isa: str, x: int, y: int, d: int, threads: int = 0) -> int: ...
    def head_linear(self, isa: str, w: list[Matrix], x: int, y: int, tail: int = 0, threads: int = 0) -> int: ...
    def moe_router(
        self,
        isa: str,
        w: Matrix,
        x: int,
        ids: int,
        weights: int,
        top_k: int,
        scoring: str,
        n_group: int = 1,
        topk_group: int = 1,
        norm_topk_prob: bool = False,
        routed_scaling: float = 1.0,
        bias: _F32 | None = None,
        logit_bias: _F32 | None = None,
        threads: int = 0,
    ) -> int: ...
    def moe_experts(
        self,
        isa: str,
        gate: list[Matrix],
        up: list[Matrix],
        down: list[Matrix],
        x: int,
        ids: int,
        weights: int,
        y: int,
        top_k: int,
        gate_bias: _F32 | None = None,
        up_bias: _F32 | None = None,
        down_bias: _F32 | None = None,
        clamped: bool = False,
        alpha: float = 1.0,
        limit: float = 0.0,
        threads: int = 0,
    ) -> int: ...
    def launch(self, tokens: _I32, where: npt.NDArray[np.int64]) -> Launch: ...
    def run(self, tokens: _I32, position: int | npt.NDArray[np.int64], profile: bool = False) -> list[float] | None: ...
