"""What `kbench compare` is given: two things of one kind, and the options that go with it."""

from __future__ import annotations

from dataclasses import dataclass

from kbench.core import UserError, did_you_mean

_ALWAYS = frozenset({"A", "B", "--margin", "--fail-on-regression", "--format", "--output", "--json"})
_RUNS = _ALWAYS | {"--model", "--threads", "--max-seconds", "--prompt-tokens", "--gen-tokens"}

IMPLEMENTATIONS, ENGINES, RULES = "a comparison of implementations", "a comparison of engines", "a comparison of rules"
REVISIONS, REVISIONS_MODEL = "a comparison of revisions", "a comparison of revisions with --model"
RECORDED = "a comparison of recorded runs"

# Operations of revisions run with the threads that their suite says.
TAKEN = {
    IMPLEMENTATIONS: _ALWAYS | {"--model", "--suite", "--filter", "--threads", "--max-seconds"},
    ENGINES: _RUNS,
    RULES: _RUNS,
    REVISIONS: _ALWAYS | {"--rev", "--suite", "--filter", "--max-seconds"},
    REVISIONS_MODEL: _RUNS | {"--rev"},
    RECORDED: _ALWAYS | {"--filter"},
}

# What KTransformers is called; kt-kernel, its CPU kernels, is all of it that can be installed beside kbench.
KT = "kt"
_KTRANSFORMERS = (KT, "ktransformers")
_KBENCH = "kbench"

_ONE = {RULES: "a rule file", ENGINES: "an engine", IMPLEMENTATIONS: "an implementation", RECORDED: "a recorded run"}
_WORDS = {IMPLEMENTATIONS: "implementations", ENGINES: "engines", RULES: "rules", RECORDED: "recorded",
          REVISIONS: "revisions", REVISIONS_MODEL: "revisions"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sides:
    """Attributes:
    a, b: as they were given.
    kind: one of ``TAKEN``.
    implementations: what runs, where those are compared.
    """

    a: str
    b: str
    kind: str

    @property
    def word(self) -> str:
        """The kind as ``--json`` has it."""
        return _WORDS[self.kind]

    @property
    def implementations(self) -> tuple[str, str]:
        return _implementation(self.a), _implementation(self.b)

    @property
    def of_experts(self) -> bool:
        """Whether only routed experts can be compared."""
        return self.kind == IMPLEMENTATIONS and KT in self.implementations

    @property
    def notes(self) -> list[str]:
        """What is to be known of what the sides stand for."""
        if not (self.of_experts and _KBENCH in (self.a, self.b)):
            return []
        return ["kbench and ktransformers are compared as a layer of routed experts: kbench's best CPU kernel for it "
                "and kt-kernel's; its GGUF kernels do nothing else"]  # fmt: skip


def _implementation(name: str) -> str:
    if name in _KTRANSFORMERS:
        return KT
    return "cpuinfer" if name == _KBENCH else name


def sides_of(a: str | None, b: str | None, revisions: list[str], model: str | None) -> Sides:
    """The two sides and what they are; UserError when they are not two of one kind."""
    if revisions:
        if a is not None or len(revisions) != 2:
            raise UserError(f"{len(revisions)} revisions{'' if a is None else f' beside {a}'}", where="--rev",
                            accepted="two of them, and no A and B")  # fmt: skip
        return Sides(revisions[0], revisions[1], REVISIONS if model is None else REVISIONS_MODEL)
    if a is None or b is None:
        raise UserError("two things to compare are needed", accepted="A and B, or --rev twice")
    kinds = _kind(a), _kind(b)
    engine = next((name for name, kind in zip((a, b), kinds, strict=True) if kind == ENGINES), None)
    if engine is not None and {a, b} & set(_KTRANSFORMERS):
        if engine != _KBENCH:
            raise UserError(f"{a} and {b} have no part in common that could be timed", where="kbench compare",
                            accepted="kbench ktransformers: a layer of routed experts each")  # fmt: skip
        return Sides(a, b, IMPLEMENTATIONS)
    if kinds[0] != kinds[1]:
        mixed = set(kinds) == {ENGINES, IMPLEMENTATIONS}
        raise UserError(
            f"{a} is {_ONE[kinds[0]]}, {b} is {_ONE[kinds[1]]}",
            accepted="two implementations, two engines, two rule files, or two recorded runs",
            todo="cpuinfer stands for kbench's kernels" if mixed and engine == _KBENCH else "",
        )
    return Sides(a, b, kinds[0])


def _kind(name: str) -> str:
    """What ``name`` is. UserError: nothing that there is."""
    from kbench.engine import ENGINES as engines
    from kbench.suites import comparable_names

    if name.endswith((".yaml", ".yml")):
        return RULES
    if name.endswith(".jsonl"):
        return RECORDED
    if name.partition(":")[0] in engines:
        return ENGINES
    known = (*comparable_names(), *_KTRANSFORMERS)
    if name not in known:
        raise UserError(
            f"unknown name {name!r}",
            accepted=f"engines: {', '.join(engines)}; implementations: {', '.join(dict.fromkeys(known))}; "
            "rule files (.yaml); recorded runs (.jsonl)",
            todo=did_you_mean(name, (*engines, *known)),
        )
    return IMPLEMENTATIONS
