"""One measurement as it is stored: schema, validation of what comes back from a file, and the case key.

A stored line is untrusted input: every field is checked on reading, and an error names the file and the line. Fields
that this version does not know are kept and written back, so that an older program does not eat a newer one's data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, cast, get_args

from kbench.core import CorruptFile, Problem
from kbench.measure import Measurement, host, median

from .commit import current_commit

SCHEMA = 1

# From each older schema to the next: what a record of it is called now. A file is never rewritten for it; records of
# every schema that ever was are read for good (tests/results/golden holds some of each).
Fields = dict[str, Any]
UPGRADES: dict[int, Callable[[Fields], Fields]] = {}

# A line beyond this is no record: a million samples take half of it.
MAX_LINE_BYTES = 32 << 20
# Nobody has more; and a number beyond 64 bits is none that an index or a table of numbers takes.
MAX_THREADS = 1 << 20
# Seconds, rates and ratios of anything real lie far within; of what a file may claim beyond, logarithms overflow.
_LEAST_VALUE, _MOST_VALUE = 1e-30, 1e30

Status = Literal["ok", "skipped", "unsupported", "wrong", "crashed", "timeout"]
Source = Literal["measured", "modelled"]
Direction = Literal["lower", "higher"]
Params = Mapping[str, int | float | str]


def case_key(op: str, params: Params) -> str:
    """E.g. ``linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)``: the problem's key, then what else differs."""
    return f"{op}({','.join(f'{name}={value}' for name, value in params.items())})"


def problem_params(problem: Problem) -> dict[str, int | str]:
    """The problem's parameters by name, in the order of its key."""
    return problem.params


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured (or why not), by what, where and when.

    Attributes:
        key: the case, e.g. ``linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)``; without the implementation.
        op, problem: the operation and its parameters by name; other kinds of measurement have names of their own.
        threads: thread count, None where it means nothing.
        unit, direction: of ``samples`` and ``median``; whether lower or higher is better.
        samples: raw, in the order taken, in full precision. Empty unless ``status`` is ``ok``.
        source: ``modelled`` for numbers that were computed for a device that is not here.
        op_spec_hash: of the operation's meaning; records with different hashes are never compared.
        reason: why there are no samples.
        extra: everything else, e.g. warm-up counts, warnings about the host, fields of newer versions.
    """

    key: str
    op: str
    implementation: str
    problem: Params = field(default_factory=dict)
    threads: int | None = None
    device: str = "cpu"
    unit: str = "seconds"
    direction: Direction = "lower"
    samples: tuple[float, ...] = ()
    median: float | None = None
    stop_reason: str = ""
    source: Source = "measured"
    op_spec_hash: str = ""
    host_id: str = ""
    commit: str = ""
    created: str = ""
    status: Status = "ok"
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @classmethod
    def make(
        cls,
        what: Problem | tuple[str, Params],
        implementation: str,
        *,
        threads: int | None = None,
        result: Measurement | Sequence[float] = (),
        status: Status = "ok",
        reason: str = "",
        device: str = "cpu",
        unit: str = "seconds",
        direction: Direction = "lower",
        source: Source = "measured",
        op_spec_hash: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> Record:
        """A record of now, on this host, at this commit; ``what`` is a problem, or an op's name with parameters.

        ``result`` is a measurement, or samples in ``unit``.
        """
        if isinstance(what, Problem):
            op, params = what.op, cast("Params", problem_params(what))
        else:
            op, params = what
        stop_reason, more = "", dict(extra or {})
        if isinstance(result, Measurement):
            samples = result.samples_seconds
            stop_reason = result.stop_reason
            more = {
                "n_warmup": result.n_warmup,
                "first_seconds": result.first_seconds,
                "calls_per_sample": result.calls_per_sample,
                **more,
            }
        else:
            samples = tuple(float(sample) for sample in result)
        key_params = {**params, "threads": threads} if threads is not None else params
        return cls(
            key=case_key(op, key_params),
            op=op,
            implementation=implementation,
            problem=params,
            threads=threads,
            device=device,
            unit=unit,
            direction=direction,
            samples=samples,
            median=median(samples) if samples else None,
            stop_reason=stop_reason,
            source=source,
            op_spec_hash=op_spec_hash,
            host_id=host().host_id,
            commit=current_commit(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status=status,
            reason=reason,
            extra=more,
        )

    def core_problem(self) -> Problem:
        """The problem as an object; UserError when ``op`` is none of the operations."""
        return Problem.make(self.op, **{name: v for name, v in self.problem.items() if not isinstance(v, float)})

    @property
    def is_value(self) -> bool:
        """Whether ``median`` is what the case took (or its rate) when it was run by itself: no failure, no ratio of two
        sides, and not timed in its place among a model's other calls, which is another quantity."""
        return (
            self.status == "ok" and self.op != "compare"
            and not self.extra.get("in_place")
            and self.median is not None and _LEAST_VALUE <= self.median <= _MOST_VALUE
        )  # fmt: skip

    def to_json(self) -> str:
        """One line without its end; ``extra``'s fields come last, at the top level."""
        known = {name: getattr(self, name) for name in FIELDS} | {"problem": dict(self.problem)}
        # A field of a newer version must not overwrite one of ours.
        extra = {name: value for name, value in self.extra.items() if name not in known}
        text = json.dumps({**known, **extra}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # A message may quote a file name that is no UTF-8; the file is.
        return text.encode("utf-8", "replace").decode("utf-8")

    @classmethod
    def from_json(cls, line: str | bytes, where: str = "<record>") -> Record:
        """The record of one line. CorruptFile, with ``where``, for anything that is none."""
        if len(line) > MAX_LINE_BYTES:
            raise CorruptFile(f"a line of {len(line)} bytes", where=where, accepted=f"at most {MAX_LINE_BYTES}")
        try:
            data = json.loads(line, parse_constant=_no_constant, parse_float=_finite_float)
        except (ValueError, RecursionError) as error:
            raise CorruptFile(f"no valid JSON: {error}", where=where, accepted="one record a line") from None
        if not isinstance(data, dict):
            raise CorruptFile(f"a JSON {type(data).__name__}", where=where, accepted="a JSON object") from None
        return cls(**_checked(data, where))


FIELDS = ("schema", *(name for name in Record.__dataclass_fields__ if name not in ("schema", "extra")))

_TEXTS = ("key", "op", "implementation", "device", "unit", "stop_reason", "op_spec_hash", "host_id", "commit")
_CHOICES: dict[str, tuple[str, ...]] = {
    "direction": get_args(Direction),
    "source": get_args(Source),
    "status": get_args(Status),
}


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if abs(value) == math.inf:
        raise ValueError(f"{text} is beyond a double")
    return value


def _finite(value: object) -> bool:
    # A bool is an int in Python, and JSON integers have no bound: compare before converting.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


def _checked(data: dict[str, Any], where: str) -> dict[str, Any]:
    def bad(name: str, accepted: str) -> CorruptFile:
        found = f"{name} is missing" if name not in data else f"{name} is {json.dumps(data[name])[:60]}"
        return CorruptFile(found, where=where, accepted=accepted)

    schema = data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise bad("schema", "an integer")
    while schema in UPGRADES:
        data = UPGRADES[schema]({**data})
        schema = data["schema"] = schema + 1
    if schema != SCHEMA:
        raise CorruptFile(
            f"schema {schema}", where=where, accepted=f"schema {SCHEMA}", todo="read it with the kbench that wrote it"
        )
    known: dict[str, Any] = {"schema": schema}
    for name in ("key", "op", "implementation"):
        if not data.get(name):
            raise bad(name, "text")
    for name in (*_TEXTS, "created", "reason"):
        value = data.get(name, Record.__dataclass_fields__[name].default)
        if not isinstance(value, str):
            raise bad(name, "text")
        known[name] = value
    for name, choices in _CHOICES.items():
        value = data.get(name, Record.__dataclass_fields__[name].default)
        if value not in choices:
            raise bad(name, ", ".join(choices))
        known[name] = value
    threads = data.get("threads")
    is_count = isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= MAX_THREADS
    if threads is not None and not is_count:
        raise bad("threads", f"an integer from 1 to {MAX_THREADS}, or null")
    samples = data.get("samples", [])
    if not isinstance(samples, list) or not all(_finite(sample) for sample in samples):
        raise bad("samples", "a list of finite numbers")
    middle = data.get("median")
    if middle is not None and not _finite(middle):
        raise bad("median", "a finite number or null")
    problem = data.get("problem", {})
    if not isinstance(problem, dict) or not all(isinstance(v, str) or _finite(v) for v in problem.values()):
        raise bad("problem", "an object of numbers and texts")
    try:
        known["samples"] = tuple(float(sample) for sample in samples)
        known["median"] = None if middle is None else float(middle)
    except OverflowError:
        raise bad("samples", "finite numbers") from None
    known["threads"], known["problem"] = threads, problem
    known["extra"] = {name: value for name, value in data.items() if name not in FIELDS}
    return known
