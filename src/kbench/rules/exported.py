"""What every export starts from and ends with: how the model is to run, and a command line with what it leaves out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbench.core import AUTO, Assignment, Module, Phase, Placement, TensorInfo, UserError, is_injected

from .fold import ranges, split_number

# Operations that are not said in other tools' words: those that choose by themselves, and the plain CPU.
_OPEN = (AUTO, "cpu")
_PHASES = (Phase.DECODE, Phase.PREFILL)


@dataclass(frozen=True, slots=True)
class Serving:
    """How the exported model is to run, beside where its modules are.

    Attributes:
        model: the GGUF file; a name to be replaced where there is none yet.
        checkpoint: folder of the model's Hugging Face files (config, tokenizer; for sglang-kt weights too).
        context: tokens that the cache holds for each sequence.
        sequences: decoded at once.
        chunk: tokens of one prefill step.
        kv: type of the cache.
        draft_layers: layers that the file has beyond the tree's, for drafting.
        rules_file: what the exported rules will be called, for a tool that reads a file.
    """

    model: str = "MODEL.gguf"
    checkpoint: str = "MODEL_FOLDER"
    context: int = 4096
    sequences: int = 1
    chunk: int = 256
    kv: str = "f16"
    draft_layers: int = 0
    rules_file: str = "ktransformers.yaml"


@dataclass(frozen=True, slots=True)
class Export:
    """An assignment in the words of ``tool``.

    Attributes:
        options: where the tool's options were looked up, and in which version.
        notes: what the tool cannot be told of the rules, or does otherwise than they say.
        program, arguments: the command line.
        file: what is to be written to ``Serving.rules_file`` first; empty: nothing.
    """

    tool: str
    options: str
    notes: tuple[str, ...]
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    file: str = ""

    @property
    def command(self) -> str:
        """For a shell, an option a line."""
        lines = [shlex.join(self.program)]
        for argument in self.arguments:
            word = shlex.quote(argument)
            if argument.startswith("-") and not argument[1:2].isdigit():
                lines.append(word)
            else:
                lines[-1] += f" {word}"
        return " \\\n  ".join(lines)

    def comments(self) -> list[str]:
        """What stands above the command, without the sign of a comment."""
        return [f"{self.tool}: options as of {self.options}", *(f"note: {note}" for note in self.notes)]


def placements_of(assignment: Assignment, tree: Module) -> dict[str, Placement]:
    """One for every module of ``tree``."""
    return {module.name: assignment.get(module.name, Placement()) for module in tree.walk()}


def refuse_own(assignment: Assignment, tree: Module, tool: str) -> None:
    """An operator made for kbench computes on its arrays: another tool that imported it would fail at the first token,
    and one that left it out would compute another model.

    Raises:
        UserError: a module is done by somebody's own operator, or by another host.
    """
    placed = placements_of(assignment, tree)
    own = [(n, op) for n, p in placed.items() for op in map(p.implementation, _PHASES) if is_injected(op)]
    if own:
        modules = list(dict.fromkeys(name for name, _ in own))
        more = f" and {len(modules) - 1} more modules" if len(modules) > 1 else ""
        raise UserError(
            f"{own[0][1]} replaces {modules[0]}{more}: {tool} cannot run an operator made for kbench",
            where="rules",
            todo="export a rule file without it",
        )
    far = next((str(p.device(phase)) for p in placed.values() for phase in _PHASES if p.device(phase).host), None)
    if far is not None:
        raise UserError(f"{far} is another host's", where="rules", accepted=f"for {tool}, devices of one host")


def tensor_places(assignment: Assignment, tree: Module) -> Iterator[tuple[TensorInfo, Module, Placement]]:
    """Every tensor with the module that it belongs to and that module's placement."""
    for module in tree.walk():
        for tensor in module.tensors:
            yield tensor, module, assignment.get(module.name, Placement())


def common_threads(assignment: Assignment, tree: Module, phase: Phase) -> int | None:
    """The thread count of most bytes on the CPU; None where no rule says one."""
    n_bytes: dict[int | None, int] = {}
    for tensor, _, placement in tensor_places(assignment, tree):
        if placement.device(phase).kind == "cpu" and tensor.kind != "embedding":
            count = placement.thread_count(phase)
            n_bytes[count] = n_bytes.get(count, 0) + tensor.n_bytes
    return max(n_bytes, key=lambda count: n_bytes[count], default=None)


def thread_notes(assignment: Assignment, tree: Module, counts: Mapping[Phase, int | None], tool: str) -> list[str]:
    """Modules whose thread count is not the one of their phase."""
    notes = []
    for phase in _PHASES:
        others: dict[int, list[str]] = {}
        for name, placement in placements_of(assignment, tree).items():
            count = placement.thread_count(phase)
            if count is not None and count != counts[phase] and placement.device(phase).kind == "cpu":
                others.setdefault(count, []).append(name)
        if others:
            told = "; ".join(f"{count} for {named(names)}" for count, names in sorted(others.items()))
            of_all = f"one thread count for all of {phase}, here {counts[phase] or 'its own choice'}"
            notes.append(f"{tool} has {of_all}; the rules say {told}")
    return notes


def kernel_notes(assignment: Assignment, tree: Module, tool: str) -> list[str]:
    """What the rules say of kernels, which the tool chooses by itself."""
    used = {
        placement.implementation(phase)
        for _, _, placement in tensor_places(assignment, tree)
        for phase in _PHASES
        if placement.implementation(phase) not in _OPEN
    }
    blocks = [name for name, placement in placements_of(assignment, tree).items() if placement.block]
    notes = [f"{tool} has kernels of its own: {', '.join(sorted(used))} of the rules is not said"] if used else []
    if blocks:
        notes.append(f"kernel parameters of {named(blocks)} are kbench's alone")
    return notes


def expert_notes(assignment: Assignment, tree: Module, tool: str) -> list[str]:
    """Layers whose experts the rules put apart, for a tool that moves them as one."""
    apart = [module.name for module in tree.walk() if assignment.get(module.name, Placement()).gpu_experts is not None]
    if not apart:
        return []
    return [f"gpu_experts of {named(apart)} cannot be said: {tool} moves a layer's experts as one, with the others"]


def named(names: Sequence[str]) -> str:
    """Modules as one reads them: layers folded, at most three kinds."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        head, number, tail = split_number(name)
        layers.setdefault((head, tail), []).extend([] if number is None else [number])
    kinds = [f"{head}{ranges(numbers)}{tail}" for (head, tail), numbers in layers.items()]
    more = f" and {len(kinds) - 3} more kinds of modules" if len(kinds) > 3 else ""
    return f"{', '.join(kinds[:3])}{more}"


def flags(pairs: Iterable[tuple[str, object]]) -> list[str]:
    """Arguments: those with a value; a value of None leaves its option out."""
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
