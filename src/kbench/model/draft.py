"""Collects the calls of a model while it is lowered, each on its module's device, before values are moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbench.core import AUTO, Assignment, Attribute, Device, OpCall, Phase, Placement, Problem, TensorInfo, Value

from .descriptor import ModelDescriptor

Resolve = Callable[[Problem, Device], str]
_DEFAULT = Placement()


@dataclass
class Draft:
    """The calls so far, for ``tokens`` new tokens of which the last has ``context`` tokens in the cache; with ``ring``
    those are all that a token ever sees."""

    model: ModelDescriptor
    assignment: Assignment
    phase: Phase
    tokens: int
    context: int
    kv: str
    resolve: Resolve
    ring: bool = False
    calls: list[OpCall] = field(default_factory=list)
    _resolved: dict[tuple[Problem, Device], str] = field(default_factory=dict)

    def tensor(self, name: str) -> TensorInfo:
        return self.model.tensors_by_name[name]

    def has(self, name: str) -> bool:
        return name in self.model.tensors_by_name

    def window(self, layer: int) -> int:
        """Tokens that one sees in a layer at the most, itself included; 0: all."""
        return self.model.layer_window(layer, self.context if self.ring else 0)

    def present(self, *names: str) -> tuple[str, ...]:
        """Those of ``names`` that are tensors of the model."""
        return tuple(name for name in names if self.has(name))

    def placement(self, module: str) -> Placement:
        return self.assignment.get(module, _DEFAULT)

    def emit(
        self,
        problem: Problem,
        module: str,
        inputs: tuple[str, ...],
        outputs: tuple[Value, ...],
        weights: tuple[str, ...] = (),
        attrs: Mapping[str, Attribute] | None = None,
        placement: Placement | None = None,
    ) -> str:
        """Adds a call, where ``placement`` says: the module's, if that is None; returns the name of its first
        output."""
        placement = placement or self.placement(module)
        device, implementation = placement.device(self.phase), placement.implementation(self.phase)
        if implementation == AUTO:
            # A model has some ten different problems and a thousand calls.
            key = (problem, device)
            if key not in self._resolved:
                self._resolved[key] = self.resolve(problem, device)
            implementation = self._resolved[key]
        self.calls.append(
            OpCall(
                problem.op,
                problem,
                implementation,
                device,
                module,
                inputs,
                outputs,
                weights,
                attrs or {},
                placement.thread_count(self.phase),
                placement.block,
            )
        )
        return outputs[0].name

    def linear(self, module: str, x: str, stem: str, *, one: bool = False, out: str = "") -> str:
        """``x @ W.T`` (+ bias where the model has one) of tensor ``stem``; the result is named after the module."""
        weight = self.tensor(f"{stem}.weight")
        bias = (f"{stem}.bias",) if self.has(f"{stem}.bias") else ()
        k, n = weight.shape
        problem = Problem.make("linear", quant=weight.quant, n=n, k=k, tokens=self.rows(one))
        value = Value(out or module, n, "one" if one else "tokens")
        return self.emit(problem, module, (x,), (value,), (weight.name, *bias))

    def rms_norm(self, module: str, x: str, stem: str, *, rows: int = 1, one: bool = False) -> str:
        weight = self.tensor(f"{stem}.weight")
        d = weight.shape[0]
        problem = Problem.make("rms_norm", d=d, rows=rows, tokens=self.rows(one))
        value = Value(module, d * rows, "one" if one else "tokens")
        return self.emit(problem, module, (x,), (value,), (weight.name,), {"eps": self.model.rms_eps})

    def rope(self, module: str, x: str, out: str, *, heads: int, d: int, head_dim: int) -> str:
        """Rotates ``d`` of the ``head_dim`` elements of each head: the last ones, but of the models that say so."""
        problem = Problem.make("rope", heads=heads, d=d, tokens=self.tokens)
        factors = ("rope_freqs.weight",) if self.has("rope_freqs.weight") else ()
        attrs = {**self.model.rope, "head_dim": head_dim}
        if self.model.rotary:
            attrs["part"] = "first"
        return self.emit(problem, module, (x,), (Value(out, heads * head_dim),), factors, attrs)

    def add(self, module: str, x: str, y: str, out: str) -> str:
        problem = Problem.make("add", d=self.model.d, tokens=self.tokens)
        return self.emit(problem, module, (x, y), (Value(out, self.model.d),))

    def mlp(self, module: str, x: str, pattern: str) -> str:
        """``down(silu(gate x) * up x)`` of tensors named by ``pattern`` with ``{}`` for the part."""
        gate = self.linear(f"{module}.gate_proj", x, pattern.format("gate"))
        up = self.linear(f"{module}.up_proj", x, pattern.format("up"))
        n = self.tensor(f"{pattern.format('gate')}.weight").shape[1]
        problem = Problem.make("silu_mul", n=n, tokens=self.tokens)
        product = self.emit(problem, module, (gate, up), (Value(f"{module}.act", n),))
        return self.linear(f"{module}.down_proj", product, pattern.format("down"))

    def rows(self, one: bool) -> int:
        return 1 if one else self.tokens
