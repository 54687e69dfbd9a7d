"""GPUs that are not here: data-sheet figures and stated efficiencies, from which their time is modelled.

Nothing computed from a profile is a measurement, and everything computed from one says so. A profile is a YAML file;
the embedded ones carry the source of each figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbench.core import Lines, UserError, Work, did_you_mean, load_yaml, parse_size
from kbench.measure import LAUNCH, LinkCosts

DEFAULT_GPU = "rtx4090"

# Of the data sheet's bandwidth, what kernels that read quantized weights once reach: FlashMLA 0.9 on H800, Marlin-class
# 4-bit products near their bound on large matrices; norms, small matrices and scattered rows less.
MEMORY_EFFICIENCY = 0.8

# Of the dense FP16 rate, what products with dequantised operands reach at a few hundred tokens.
COMPUTE_EFFICIENCY = 0.5

# From the host's request to the kernel's start. Engines without whole-graph capture pay 5 us (llama.cpp) to 16 us
# (eager PyTorch) for each; captured graphs 1 to 2 us.
LAUNCH_SECONDS = 5e-6

# A small copy over PCIe with the synchronisation that its consumer needs. Hybrid decoding of DeepSeek-V2-Lite was seen
# to lose about 110 us per MoE layer to its crossings, several copies each.
LINK_LATENCY_SECONDS = 15e-6

# A modelled second may be off by this much either way: between a kernel at 0.64 and one at the data sheet's bandwidth.
BAND = 0.25

# CUDA context, cuBLAS workspace and the allocator's slack, before the first weight.
RUNTIME_BYTES = 512 << 20

# Left free, as llama.cpp does by default: the desktop, other programs, fragmentation.
MARGIN_BYTES = 1 << 30

_FOLDER = Path(__file__).parent / "profiles"
_FIELDS = ("label", "memory", "bandwidth_gb_per_s", "fp16_tflops", "link", "link_gb_per_s")
# Where each figure is from, by its name: in every embedded profile.
_OPTIONAL = ("int8_tops", "sources")


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """A GPU in numbers: bytes, bytes/s, dense FLOP/s and 8-bit operations/s (0: not told) of the data sheet; the link
    to the host in bytes/s as reached. ``sources`` says where each figure of the file is from. ``measured``: what was
    measured of the link and of launches where this GPU is; used before what is assumed of them."""

    name: str
    label: str
    memory_bytes: int
    bandwidth: float
    fp16_flops: float
    link: str
    link_bandwidth: float
    int8_ops: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    measured: LinkCosts | None = field(default=None, hash=False)

    def seconds(self, work: Work) -> float:
        """Launch, then the longer of moving the bytes and doing the arithmetic. Activations count as FP16."""
        n_bytes = work.weight_bytes + work.cache_bytes + work.activation_bytes / 2
        launch = self.measured.value(LAUNCH) if self.measured else None
        return (LAUNCH_SECONDS if launch is None else launch) + max(
            n_bytes / (MEMORY_EFFICIENCY * self.bandwidth), work.flops / (COMPUTE_EFFICIENCY * self.fp16_flops)
        )

    @property
    def link_is_measured(self) -> bool:
        return self.measured is not None and self.measured.transfer_seconds(0) is not None

    def transfer_seconds(self, n_bytes: float) -> float:
        """A copy between host and GPU, either way."""
        measured = self.measured.transfer_seconds(n_bytes) if self.measured else None
        if measured is not None:
            return measured
        return LINK_LATENCY_SECONDS + n_bytes / self.link_bandwidth


def profile_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_profile(gpu: str) -> GpuProfile:
    """The embedded profile called ``gpu``, or the one in the YAML file at that path.

    Raises:
        UserError: no such profile, or one that is incomplete.
    """
    names = profile_names()
    embedded = gpu.lower().replace("-", "").replace(" ", "") in names
    if not embedded and not gpu.endswith((".yaml", ".yml")):
        raise UserError(
            f"no GPU profile {gpu!r}",
            where="--gpu",
            accepted=f"{', '.join(names)}, or a .yaml file",
            todo=did_you_mean(gpu.lower(), names),
        )
    name = gpu.lower().replace("-", "").replace(" ", "") if embedded else Path(gpu).stem
    path = _FOLDER / f"{name}.yaml" if embedded else Path(gpu)
    data = load_yaml(path)
    if not isinstance(data, Lines) or set(data) - set(_OPTIONAL) != set(_FIELDS):
        found = ", ".join(data) if isinstance(data, Lines) else type(data).__name__
        accepted = f"exactly {', '.join(_FIELDS)}; perhaps {', '.join(_OPTIONAL)}"
        raise UserError(f"found {found or 'nothing'}", where=str(path), accepted=accepted)

    def number(key: str) -> float:
        value = data[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise UserError(f"{value!r}", where=f"{path}:{data.line_of(key)}: {key}", accepted="a positive number")
        return float(value)

    sources = data.get("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(value, str) for value in sources.values()):
        raise UserError(f"{sources!r}", where=f"{path}:{data.line_of('sources')}: sources", accepted="texts by figure")
    for key in ("label", "link"):
        if not str(data[key]).isprintable():  # a terminal would obey it
            where = f"{path}:{data.line_of(key)}: {key}"
            raise UserError(f"{data[key]!r}", where=where, accepted="one line of printable text")
    where = f"{path}:{data.line_of('memory')}: memory"
    return GpuProfile(
        name=name,
        label=str(data["label"]),
        memory_bytes=parse_size(str(data["memory"]), where),
        bandwidth=number("bandwidth_gb_per_s") * 1e9,
        fp16_flops=number("fp16_tflops") * 1e12,
        link=str(data["link"]),
        link_bandwidth=number("link_gb_per_s") * 1e9,
        int8_ops=number("int8_tops") * 1e12 if "int8_tops" in data else 0.0,
        sources=dict(sources),
    )
