"""A rule's ``replace`` turned into a placement, with everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbench.core import (
    AUTO,
    CPU,
    Block,
    Device,
    GpuExperts,
    Lines,
    Phase,
    Placement,
    UserError,
    did_you_mean,
    is_injected,
)

from .finding import ERROR, INFO, WARNING, Finding, Severity
from .gpu_experts import ACCEPTED, part_of, read_experts
from .implementations import EXPERTS_BACKENDS, KT_OPS, OPS, Op
from .operators import COMMON, CONSTRUCTOR, NO_PREFILL_OP, THREADS, Operator, UnknownOperator, is_trusted, operator
from .refused import REFUSED_DEVICES, REFUSED_OPS
from .schema import DEFAULT, THRESHOLDS, Rule, RuleSet

# More threads than any machine has: a number beyond is a mistake.
MAX_COUNT = 1 << 20
_CUDA = Device("cuda", 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Device and operation of one phase as a rule gives them; None: it does not say."""

    device: Device | None = None
    op: Op | None = None

    @property
    def leaves_device_open(self) -> bool:
        """Whether any device will do."""
        return self.device is None and (self.op is None or not self.op.kind)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a rule asks for. ``same_prefill``: prefill runs as decode does. ``kwargs``: those of an operator of
    somebody's own."""

    operator: Operator | None
    generate: Choice = Choice()
    prefill: Choice = Choice()
    same_prefill: bool = False
    out_device: Device | None = None
    threads: int | None = None
    generate_threads: int | None = None
    prefill_threads: int | None = None
    block: Block = field(default_factory=dict)
    transfer_map: Mapping[int, Device] = field(default_factory=dict)
    absorb_for_prefill: bool | None = None
    gpu_experts: GpuExperts | None = None
    inert: Mapping[str, Any] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def placement(self, default: Placement) -> Placement:
        """The placement of a module that the rule matches; ``default`` fills in what the rule leaves open."""
        device, implementation = _settle(self.generate, default.generate_device, default.generate_op)
        if self.same_prefill:
            prefill = device, implementation
        elif self.prefill == Choice():
            silent = self.generate == Choice()
            prefill = (default.prefill_device, default.prefill_op) if silent else (device, implementation)
        elif self.prefill.op is None and self.prefill.device == device:
            prefill = device, implementation
        else:
            prefill = _settle(self.prefill, device, AUTO)
        counts = self.generate_threads, self.prefill_threads
        block, kwargs = dict(self.block), dict(self.kwargs)
        placed = device, implementation, *prefill, self.out_device, self.threads, block, kwargs, *counts
        return Placement(*placed, self.absorb_for_prefill, self.gpu_experts)


def _settle(choice: Choice, device: Device, implementation: str) -> tuple[Device, str]:
    """Fills in what a choice leaves open: an op alone goes to ``device``, or to a device of the kind it needs."""
    if choice.op is None:
        return (device, implementation) if choice.device is None else (choice.device, AUTO)
    if choice.device is not None:
        return choice.device, choice.op.implementation
    if choice.op.kind and choice.op.kind != device.kind:
        device = CPU if choice.op.kind == "cpu" else _CUDA
    return device, choice.op.implementation


def resolve(rules: RuleSet, rule: Rule) -> Resolution:
    """The placement that ``rule`` asks for, and the findings about its ``replace``."""
    return _Resolver(rules, rule).resolve()


class _Resolver:
    def __init__(self, rules: RuleSet, rule: Rule) -> None:
        self.rules, self.rule = rules, rule
        self.findings: list[Finding] = []
        self.operator: Operator | None = None

    def add(
        self, code: str, key: str, found: str, accepted: str = "", todo: str = "", severity: Severity = ERROR
    ) -> None:
        part = f"replace.kwargs.{key}" if key else "replace.class"
        self.findings.append(self.rules.finding(code, severity, self.rule, part, found, accepted, todo))

    def resolve(self) -> Resolution:
        try:
            known = self.operator = operator(self.rule.replace_class, self.rules.trust)
        except UnknownOperator as error:
            self.add("unknown-operator", "", str(error), error.accepted, error.todo)
            return Resolution(None, findings=tuple(self.findings))
        values = self.values(known)
        generate, prefill = self.choice(values, known, "generate"), self.choice(values, known, "prefill")
        no_prefill = "prefill_op" in values and values["prefill_op"] is None
        out_device = values.get("out_device")
        if out_device is None and known.is_kt and generate.device == CPU and generate.op and generate.op.kind == "cpu":
            out_device = _CUDA  # the CPU operators' own default
        resolution = Resolution(
            known,
            generate,
            prefill,
            no_prefill
            or self.rules.prefills_as_decode
            or (known.name == DEFAULT and not {"prefill_device", "prefill_op"} & set(values)),
            out_device,
            values.get("threads"),
            values.get("generate_threads"),
            values.get("prefill_threads"),
            values.get("block", {}),
            values.get("transfer_map", {}),
            None if "absorb_for_prefill" in known.inert else values.get("absorb_for_prefill"),
            self.gpu_experts(values, generate, prefill),
            {key: values[key] for key in values if key in known.inert},
            self.own_kwargs() if known.foreign else {},
        )
        self.devices_fit(resolution)
        return replace(resolution, findings=tuple(self.findings))

    def values(self, known: Operator) -> dict[str, Any]:
        """The kwargs that are right, as devices, Ops and numbers."""
        given = self.rule.kwargs or {}
        inert = [key for key in given if key in known.inert]
        if inert:
            found = f"{', '.join(inert)} {'has' if len(inert) == 1 else 'have'} no effect in kbench"
            self.add("inert-kwarg", inert[0], found, "kept for KTransformers", severity=INFO)
        values: dict[str, Any] = {}
        for key, value in given.items():
            kind = known.accepts.get(key)
            if kind is None:
                if not known.foreign:
                    todo = did_you_mean(str(key), known.accepts)
                    self.add("unknown-kwarg", key, f"unknown kwarg {key!r}", ", ".join(known.accepts), todo)
                continue
            if key == "absorb_for_prefill" and value and known.short == "flashinfer_attn":
                self.add("ineffective-kwarg", key, "flashinfer_attn has no such argument", severity=WARNING)
            parsed, ok = self.parse(kind, key, value)
            if ok:
                values[key] = parsed
        for key in [key for key in values if known.name == DEFAULT and key in ("generate_op", "prefill_op")]:
            if not self.rules.native:
                self.add("default-op", key, f"KTransformers ignores {key} on default; kbench runs it", severity=INFO)
        self.one_threshold(values)
        if known.name == "Model" and "device" in values:
            for key in ("generate_device", "prefill_device"):
                values.setdefault(key, values["device"])
        return values

    def one_threshold(self, values: Mapping[str, Any]) -> None:
        """KTransformers reads only its own, misspelt name; given with another number, neither is surely meant."""
        theirs, right = THRESHOLDS
        if theirs in values and right in values and values[theirs] != values[right]:
            found = f"{right} is {values[right]}, and {theirs}, KTransformers' spelling of it, is {values[theirs]}"
            self.add("two-thresholds", right, found, "one of them; KTransformers reads the second only")
        elif right in values and theirs not in values and not self.rules.native:
            found = f"KTransformers does not read {right}"
            self.add("threshold-spelling", right, found, "", f"write {theirs}, as it is spelt there", WARNING)

    def own_kwargs(self) -> dict[str, Any]:
        """What an operator of somebody's own is made with; it judges them itself."""
        given = self.rule.kwargs or {}
        plain = given.plain() if isinstance(given, Lines) else dict(given)
        for key in [key for key in plain if key in CONSTRUCTOR]:
            self.add("own-kwarg", key, f"{key} is set by kbench", "", "give it another name")
        return {str(key): value for key, value in plain.items() if key not in COMMON and key not in CONSTRUCTOR}

    def choice(self, values: Mapping[str, Any], known: Operator, phase: str) -> Choice:
        given = self.rule.kwargs or {}

        def get(key: str) -> Any:
            if key in values or key in given:  # a wrong value was reported and must not turn into another's default
                return values.get(key)
            text = known.defaults.get(key)
            if text is None:
                return None
            return Device.parse(text) if key.endswith("_device") else KT_OPS[text]

        op = get(f"{phase}_op")
        if op is None and known.foreign:
            op = Op(known.alias or known.name)
        return Choice(get(f"{phase}_device"), op)

    def gpu_experts(self, values: Mapping[str, Any], generate: Choice, prefill: Choice) -> GpuExperts | None:
        """The experts that lie elsewhere, with what is wrong with it."""
        lonely = next((key for key in ("gpu_experts_device", "gpu_experts_op") if key in values), "")
        if lonely and "gpu_experts" not in (self.rule.kwargs or {}):
            self.add("gpu-experts", lonely, f"{lonely} of no experts", f"gpu_experts: {ACCEPTED}")
        op: Op | None = values.get("gpu_experts_op")
        part = part_of(values.get("gpu_experts"), values.get("gpu_experts_device"), op.implementation if op else AUTO)
        if part is None:
            return None
        if op is not None and op.kind not in ("", part.device.kind):
            self.add("op-device", "gpu_experts_op", f"{op.implementation} on {part.device}", "auto, triton, torch")
        device = generate.device or self.rules.default_placement.generate_device
        if device == part.device:
            found = f"the layer's other experts are on {device} too"
            self.add("gpu-experts", "gpu_experts", found, "", "set generate_device: cpu, or leave gpu_experts out")
        for own in (one.implementation for one in (generate.op, prefill.op, op) if one is not None):
            if is_injected(own):
                self.add("gpu-experts", "gpu_experts", f"{own} does all experts of a layer")
        return part

    def devices_fit(self, resolution: Resolution) -> None:
        """An op that cannot run on the device that it is put on."""
        placement = resolution.placement(self.rules.default_placement)
        for phase, choice in ((Phase.DECODE, resolution.generate), (Phase.PREFILL, resolution.prefill)):
            if choice.op is None or (phase is Phase.PREFILL and resolution.same_prefill):
                continue
            device, kind = placement.device(phase), choice.op.kind
            if kind and kind != device.kind:
                key = "generate_op" if phase is Phase.DECODE else "prefill_op"
                given = (self.rule.kwargs or {}).get(key)
                found = f"{given or self.default_op(key)} on {device}"
                where = "cpu" if kind == "cpu" else "cuda, cuda:N"
                other = key.replace("_op", "_device")
                self.add("op-device", key, found, where, f"set {other} or another {key}")

    def default_op(self, key: str) -> str:
        name = self.operator.defaults.get(key, AUTO) if self.operator else AUTO
        return f"{name} (the default)"

    def parse(self, kind: str, key: str, value: Any) -> tuple[Any, bool]:
        parser: Callable[[str, Any], Any] = getattr(self, f"parse_{kind}")
        try:
            return parser(key, value), True
        except _Wrong as wrong:
            self.add(wrong.code, key, wrong.found, wrong.accepted, wrong.todo)
            return None, False

    def parse_device(self, key: str, value: Any) -> Device | None:
        if key == "out_device" and value is None:
            return None
        return _device(value)

    def parse_gpu(self, key: str, value: Any) -> Device:
        device = _device(value)
        if device.kind == "cpu":
            raise _Wrong("gpu-experts", f"{device} is no GPU", "cuda, cuda:N", "generate_device: cpu is for the others")
        return device

    def parse_experts(self, key: str, value: Any) -> tuple[int, ...]:
        try:
            return read_experts(value)
        except ValueError as error:
            todo = f"the first {value}: [0-{value - 1}]" if _is_int(value) and value > 1 else ""
            raise _Wrong("gpu-experts", str(error), ACCEPTED, todo) from None

    def parse_op(self, key: str, value: Any) -> Op | None:
        assert self.operator is not None
        ours = {**KT_OPS, **OPS} if self.operator.name in ("Linear", "Experts", "MoEGate", DEFAULT) else OPS
        fitting = [name for name, op in ours.items() if _does(op, self.operator)]
        accepted = ", ".join(fitting)
        if value is None or value == "None":
            if key in ("generate_op", "gpu_experts_op"):
                raise _Wrong("unknown-op", "nothing to generate with", accepted)
            if self.operator.is_kt and not (self.operator.short in NO_PREFILL_OP and value == "None"):
                found = f"KTransformers' {self.operator.short} fails without one; kbench prefills as it decodes"
                self.add("no-prefill-op", key, found, severity=WARNING)
            return None
        if not isinstance(value, str):
            raise _Wrong("unknown-op", f"{_plain(value)} is no operation", accepted)
        if value in REFUSED_OPS:
            reason, instead = REFUSED_OPS[value]
            raise _Wrong("refused-op", f"{value} is not in kbench: {reason}", accepted, f"nearest: {instead}")
        op = OPS.get(value) or KT_OPS.get(value)
        if op is None:
            if is_trusted(value, self.rules.trust):
                return Op(value)
            raise _Wrong("unknown-op", f"unknown op {value!r}", accepted, did_you_mean(value, fitting))
        if not _does(op, self.operator):
            raise _Wrong("wrong-op", f"{value} is an op of {op.does}, not of {self.operator.name}", accepted)
        return op

    def parse_count(self, key: str, value: Any) -> int | None:
        if value is None and key in THREADS:
            return None
        if not _is_int(value) or not 1 <= value <= MAX_COUNT:
            raise _Wrong("bad-value", f"{_plain(value)} is no count", "a whole number from 1")
        return int(value)

    def parse_number(self, key: str, value: Any) -> int:
        if not _is_int(value) or value < 0:
            raise _Wrong("bad-value", f"{_plain(value)} is no token count", "a whole number from 0 (0: off)")
        return int(value)

    def parse_bool(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise _Wrong("bad-value", f"{_plain(value)} is neither true nor false", "true, false")
        return value

    def parse_text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _Wrong("bad-value", f"{_plain(value)} is no text", "text")
        return value

    def parse_backend(self, key: str, value: Any) -> str:
        if value not in EXPERTS_BACKENDS:
            known = ", ".join(EXPERTS_BACKENDS)
            todo = did_you_mean(str(value), EXPERTS_BACKENDS)
            raise _Wrong("bad-value", f"unknown backend {_plain(value)}", known, todo)
        return str(value)

    def parse_block(self, key: str, value: Any) -> dict[str, int | str]:
        accepted = "a mapping of kernel parameters to numbers or names, e.g. {activation_planes: 1}"
        if not isinstance(value, (Lines, dict)):
            raise _Wrong("bad-value", f"{_plain(value)} is no mapping", accepted)
        for name, chosen in value.items():
            number = _is_int(chosen) and 0 <= chosen <= MAX_COUNT
            if not isinstance(name, str) or not (number or (isinstance(chosen, str) and chosen)):
                raise _Wrong("bad-value", f"{name}: {_plain(chosen)}", accepted)
        return dict(value)

    def parse_transfer_map(self, key: str, value: Any) -> dict[int, Device]:
        accepted = "a mapping from a layer number to the device from that layer on, e.g. {30: cuda:1}"
        if value is None:
            return {}
        if not isinstance(value, (Lines, dict)):
            raise _Wrong("transfer-map", f"{_plain(value)} is no mapping", accepted)
        layers: dict[int, Device] = {}
        layer: Any
        for layer, device in value.items():
            at = f"{key}.{layer}"
            if not _is_int(layer) or layer < 0:
                todo = f"write {layer} without quotes" if str(layer).isdecimal() else ""
                self.add("transfer-map", at, f"{layer!r} is no layer number", accepted, todo)
                continue
            try:
                layers[layer] = _device(device)
            except _Wrong as wrong:
                self.add(wrong.code, at, wrong.found, wrong.accepted, wrong.todo)
        return layers


class _Wrong(Exception):
    def __init__(self, code: str, found: str, accepted: str = "", todo: str = "") -> None:
        super().__init__(found)
        self.code, self.found, self.accepted, self.todo = code, found, accepted, todo


def _device(value: Any) -> Device:
    try:
        return Device.parse(value if isinstance(value, str) else _plain(value))
    except UserError as error:
        meant = "cuda" if str(value).lower().startswith(("gpu", "cuda")) else ""
        todo = f"did you mean {meant}?" if meant else did_you_mean(str(value), ("cpu", "cuda", "cuda:0"))
        why = REFUSED_DEVICES.get(str(value).partition(":")[0].lower())
        if why:
            raise _Wrong("bad-device", f"{error.found}: {why}", error.accepted, "nearest: cuda, or cpu") from None
        raise _Wrong("bad-device", error.found, error.accepted, todo) from None


def _does(op: Op, known: Operator) -> bool:
    # A router is a linear layer, and `default` stands for whatever the module is.
    return not op.does or known.name in (op.does, DEFAULT) or (known.name == "MoEGate" and op.does == "Linear")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
