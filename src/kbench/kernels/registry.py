"""Which implementations there are, and which is the best one for a problem."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence

from kbench.core import (
    AUTO,
    CPU,
    Block,
    Device,
    InvalidEnvironment,
    OpCall,
    Problem,
    Unsupported,
    UserError,
    did_you_mean,
)

from .block_parameters import BlockParameter, parameter_errors
from .implementation import AnyArray, Implementation, Prepared, StepState, Support, WeightData
from .marlin import MarlinImplementation, marlin_device, marlin_packing
from .reference import ReferenceImplementation
from .torch_baseline import TorchDevice, TorchImplementation, torch_device
from .triton import TritonImplementation, triton_device

# A GPU's kernels; native ones from the most to the least capable instruction set; plain torch; the definition; what
# rounds weights anew, which is chosen by name only.
RANKING = (
    "triton",
    "cpu.amx", "cpu.avx512_bf16", "cpu.avx512_vnni", "cpu.avx512", "cpu.avx_vnni", "cpu.avx2", "cpu.neon_i8mm",
    "cpu.neon_dotprod", "cpu.scalar", "torch", "reference", "marlin",
)  # fmt: skip


class MissingNative:
    """Stands for a native implementation that this installation does not have, so that it can be listed."""

    device_kind = "cpu"

    def __init__(self, name: str, reason: str) -> None:
        self.name, self._reason = name, reason
        self.summary = f"native kernels, {name.partition('.')[2]}"

    def runnable(self) -> Support:
        return Support(False, self._reason)

    def supports(self, problem: Problem) -> Support:
        return Support(False, self._reason)

    def block_parameters(self, problem: Problem | None = None) -> tuple[BlockParameter, ...]:
        return ()

    def capturable(self, problem: Problem) -> Support:
        return Support(False, self._reason)

    def prepare(self, problem: Problem, weights: Sequence[WeightData], block: Block | None = None) -> Prepared:
        raise Unsupported(f"{self.name}: {self._reason}")

    def run(
        self, call: OpCall, prepared: Prepared, inputs: Sequence[AnyArray], state: StepState, threads: int
    ) -> list[AnyArray]:
        raise Unsupported(f"{self.name}: {self._reason}")


def _native() -> tuple[Implementation, ...]:
    """What ``kbench.kernels.cpu.implementations()`` offers; stand-ins when the extension cannot be imported."""
    try:
        found: tuple[Implementation, ...] = tuple(importlib.import_module(".cpu", __package__).implementations())
    except (ImportError, AttributeError) as error:  # AttributeError: a source tree without the built package
        reason = f"extension not built ({error})"
        return tuple(MissingNative(name, reason) for name in RANKING if name.startswith("cpu."))
    return found


@functools.lru_cache(maxsize=1)
def implementations() -> tuple[Implementation, ...]:
    """Every implementation, best first, whether or not it can run here."""
    found: list[Implementation] = [
        *_native(), TritonImplementation(), MarlinImplementation(), TorchImplementation(), ReferenceImplementation(),
    ]  # fmt: skip
    rank = {name: position for position, name in enumerate(RANKING)}
    return tuple(sorted(found, key=lambda item: rank.get(item.name, len(rank))))


@functools.lru_cache(maxsize=1)
def ladder_implementations() -> tuple[Implementation, ...]:
    """The steps of the optimisation ladder, teaching material: found by name, but never chosen by ``best``, offered by
    ``candidates`` or measured by a tuner.

    Raises:
        InvalidEnvironment: the native extension is not built.
    """
    try:
        found: tuple[Implementation, ...] = importlib.import_module(".cpu", __package__).ladder_implementations()
    except (ImportError, AttributeError) as error:
        raise InvalidEnvironment(f"the native extension is not built ({error})", where="ladder.*") from None
    return found


def implementation(name: str) -> Implementation:
    """The implementation called ``name``; ``ladder.*`` too.

    Raises:
        UserError: there is none of that name.
    """
    known = ladder_implementations() if name.startswith("ladder.") else implementations()
    by_name = {item.name: item for item in known}
    if name not in by_name:
        raise UserError(
            f"unknown implementation {name!r}", accepted=", ".join(by_name), todo=did_you_mean(name, by_name)
        )
    return by_name[name]


def packing(name: str, block: Block) -> str:
    """What decides how implementation ``name`` prepares weights under kernel parameters ``block``: calls with the same
    answer share them. All native instruction sets read one packing."""
    if name == MarlinImplementation.name:
        return marlin_packing(block)
    if not name.startswith("cpu."):
        return name
    return "cpu raw" if block.get("layout") == "raw" else "cpu"


def left_in_file(name: str, block: Block, quant_name: str) -> bool:
    """Whether implementation ``name`` reads a matrix of type ``quant_name`` where the file's map has it, and takes no
    memory for it: because ``block`` says so, or because there is no packing of that type."""
    if not name.startswith("cpu."):
        return False
    from .cpu.matrices import DEQUANTISED_FORMATS  # where the extension is not installed, nothing is called cpu.*

    return packing(name, block) == "cpu raw" or quant_name in DEQUANTISED_FORMATS


def support(item: Implementation, problem: Problem, device: Device = CPU) -> Support:
    """Whether ``item`` can run ``problem`` on ``device`` of this machine, and why not."""
    runnable = runnable_on(item, device)
    return item.supports(problem) if runnable.ok else runnable


def runnable_on(item: Implementation, device: Device) -> Support:
    """Whether this machine can run ``item`` on ``device``: ``torch`` runs wherever torch does."""
    if item.device_kind == device.kind:
        return item.runnable()
    if isinstance(item, TorchImplementation) and device.kind == "cuda" and item.runnable_on_cuda().ok:
        return item.runnable_on_cuda()
    return Support(False, f"runs on {item.device_kind}, not on {device}")


def candidates(problem: Problem, device: Device = CPU) -> tuple[tuple[Implementation, Support], ...]:
    """Every implementation with whether it can run ``problem`` on ``device``, and why not; best first."""
    return tuple((item, support(item, problem, device)) for item in implementations())


def block_errors(block: Block, used: Iterable[tuple[str, Device]], where: str = "") -> dict[str, UserError]:
    """What is wrong with kernel parameters ``block`` of a module that runs on the implementations ``used``, each with
    its device, by the parameter's name; empty when nothing is.

    ``auto`` stands for every implementation of its device. An implementation without parameters, or on a GPU, ignores
    what another one reads; one that is not known here, or not built, is believed.
    """
    if not block:
        return {}
    by_name = {item.name: item for item in implementations()}
    items: dict[str, Implementation] = {}
    for name, device in used:
        found = [item for item in by_name.values() if item.name == name or (name == AUTO and not rounds(item))]
        found = [item for item in found if item.device_kind == device.kind]
        if not found or any(isinstance(item, MissingNative) for item in found):
            return {}
        items |= {item.name: item for item in found}
    readers = [(item.device_kind, {p.name: p for p in item.block_parameters()}) for item in items.values()]
    errors: dict[str, UserError] = {}
    for kind, known in readers:
        # A GPU's kernels pass over what the CPU's read; the CPU's refuse what they do not know.
        others = {name for other, names in readers if kind == "cuda" != other for name in names}
        read = {name: value for name, value in block.items() if name in known or name not in others}
        errors |= parameter_errors(read, known, where) if known else {}
    if not any(known for _, known in readers):
        text = f"{', '.join(items)} {'has' if len(items) == 1 else 'have'} no kernel parameters"
        errors = {name: UserError(f"unknown kernel parameter {name!r}", where=where, todo=text) for name in block}
    return errors


def on_tensors(name: str, place: str) -> TorchDevice | None:
    """What runs calls of implementation ``name`` on tensors that stay on torch device ``place``; None: it takes and
    returns arrays in host memory."""
    if name == TritonImplementation.name:
        return triton_device(place)
    if name == MarlinImplementation.name:
        return marlin_device(place)
    return torch_device(place) if name == "torch" else None


def planned_on_gpu(problem: Problem) -> str:
    """Name of the highest-ranked implementation that a GPU has for ``problem``, whether or not there is a GPU here."""
    for item in implementations():
        on_gpu = item.device_kind == "cuda" or isinstance(item, TorchImplementation)
        if on_gpu and not rounds(item) and item.supports(problem).ok:
            return item.name
    return AUTO


def rounds(item: Implementation) -> bool:
    """Whether ``item`` rounds weights anew: its results are another model's, for whoever asks for it by name."""
    return bool(getattr(item, "rounds_weights", False))


@functools.lru_cache(maxsize=4096)
def best(problem: Problem, device: Device = CPU) -> str:
    """Name of the highest-ranked implementation that can run ``problem`` on ``device``.

    Raises:
        Unsupported: none can; the message has everyone's reason.
    """
    reasons = []
    for item in implementations():
        if rounds(item):
            continue
        verdict = support(item, problem, device)
        if verdict.ok:
            return item.name
        reasons.append(f"{item.name}: {verdict.reason}")
    raise Unsupported(f"nothing runs {problem.key} on {device}", accepted="; ".join(reasons))
