"""The result of one `kbench tune`: the JSON object ``kbench.tune/1``, kept beside the rules that it explains.

Version 1 grows: readers must not expect a field that is optional here, and ignore what they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbench.core import CorruptFile, UserError, write_whole

from .rules_of_thumb import with_rules_of_thumb
from .shape import ListOf, MapOf, Maybe, Number, Object, Shape, Text, check_shape

SCHEMA = "kbench.tune/1"
SUFFIX = ".tune.json"

# GPU memory that cards are sold with: every curve of speed against GPU memory has a point at each.
SOLD_GIB = (12, 16, 24, 32, 48)

# A result of a model of a hundred layers takes a tenth of a megabyte.
_MAX_BYTES = 64 << 20

# Rates and their differences beyond this are nonsense.
_MOST = 1e30

# What a prediction that stands beside a run is made of, and whether the run is one of before.
IN_TURNS, OF_THE_PLAN = "in turns", "of the plan"
NOW, STORED = "now", "stored"

_SOURCE = Text(("measured", "modelled"))
_PHASE = Text(("decode", "prefill"))
_RATES: dict[str, Shape] = {"decode_tokens_per_s": Number(), "prefill_tokens_per_s": Number()}
_INTERVALS: dict[str, Shape] = {"decode_interval": ListOf(Number(), 2), "prefill_interval": ListOf(Number(), 2)}
_ALTERNATIVE = Object({"device": Text(), "seconds": Maybe(Number())}, {"reason": Text(), "source": Text()})
_OP = Object(
    {
        "op": Text(), "module": Text(), "phase": _PHASE, "problem": Text(), "device": Text(), "impl": Text(),
        "threads": Maybe(Number()), "seconds": Number(), "source": _SOURCE, "flops": Number(),
        "bytes_touched": Number(), "elements_resident": Number(), "resident_bytes": Number(), "ai_touched": Number(),
        "ai_resident": Number(), "n_calls": Number(), "unit": Text(), "layers": Text(),
        "alternatives": ListOf(_ALTERNATIVE, 100),
    },
    {"measured_as": Maybe(Text()), "seconds_interval": ListOf(Number(), 2), "seconds_by_threads": MapOf(Number())},
)  # fmt: skip
_MEMORY = Object(
    {
        "weights_bytes": Number(), "kv_bytes": Number(), "workspace_bytes": Number(), "total_bytes": Number(),
        "budget_bytes": Number(),
    },
    {
        "margin_bytes": Number(), "runtime_bytes": Number(), "pinned_bytes": Number(), "swapped_bytes": Number(),
        "loading_bytes": Number(),
    },
)  # fmt: skip
_CEILING = Object(
    {"device": Text(), "source": _SOURCE, "bandwidth_bytes_per_s": Number(), "operations_per_s": Number()},
    {"threads": Maybe(Number()), "label": Text(), "int8_operations_per_s": Number()},
)
_POINT = Object(
    {"vram_bytes": Number(), "used_bytes": Maybe(Number())},
    {**_RATES, "dram_used_bytes": Number(), "workload_seconds": Number()},
)
_SWEEP = Object(
    {
        "problem": Text(),
        "implementation": Text(),
        "settings": ListOf(Object({"block": Text(), "seconds": Number()}), 1000),
    }
)
_MACHINE = Object(
    {},
    {
        "cpu": Text(), "physical_cores": Number(), "logical_cpus": Number(), "usable_cpus": Number(),
        "memory_bytes": Number(), "instruction_sets": ListOf(Text(), 200), "caches": ListOf(Text(), 100),
        "numa_nodes": Number(), "gpus": ListOf(Text(), 64), "system": Text(), "versions": MapOf(Text()),
    },
)  # fmt: skip
_GAIN = Object(
    {"device": Text(), "extra_bytes": Number()},
    {"decode_tokens_per_s": Number(-_MOST), "prefill_tokens_per_s": Number(-_MOST), "extra_bytes_per_s": Number()},
)
_THUMB = Object({"name": Text(), "words": Text(), "of": Text(), "ratio": Number()})
_STREAMING = Object(
    {
        "device": Text(), "label": Text(), "layer_bytes": Number(), "link_seconds": Number(),
        "prepare_seconds": Maybe(Number()), "ready_tokens": Maybe(Number()), "break_even_tokens": Maybe(Number()),
        "obstacle": Text(), "threshold": Number(), "source": _SOURCE,
    }
)  # fmt: skip
_FORM = Object({"kv": Text(), "chunk": Number(), "workload_seconds": Maybe(Number())})
_WHAT_IF = Object({"vram_bytes": Number(), **{name: Maybe(Number()) for name in (*_RATES, "decode_ratio")}})
_RESULT = Object(
    {
        "schema": Text((SCHEMA,)),
        "model": Object(
            {"name": Text(), "arch": Text(), "params": Number(), "bytes": Number(), "quant": Text(), "source": Text()}
        ),
        "host_id": Text(),
        "host": Maybe(Object({"cpu": Text(), "cores": Number()})),
        "gpu": Maybe(Object({"name": Text(), "label": Text(), "source": _SOURCE})),
        "budgets": Object({"vram_bytes": Number(), "dram_bytes": Number()}, {"by_device": MapOf(Number(), 64)}),
        "workload": Object(
            {"prompt_tokens": Number(), "gen_tokens": Number(), "context": Number()},
            {"batch": Number(), "chunk": Number(), "kv": Text(), "objective": Text(), "routing": Text()},
        ),
        "ops": ListOf(_OP),
        "placement": MapOf(_MEMORY, 64),
        "predicted": Object({**_RATES, "source": _SOURCE}, _INTERVALS),
        "measured": Maybe(Object(_RATES, _INTERVALS)),
        "notes": ListOf(Text(), 1000),
        "solver": Object({"status": Text(), "gap": Number(), "seconds": Number(), "greedy_seconds": Maybe(Number())}),
    },
    {
        "measured_reason": Maybe(Text()),
        # The prediction that chose the placement, where ``predicted`` is one of the minutes of the run.
        "planned": Object(_RATES, {**_INTERVALS, "source": _SOURCE}),
        "check": Maybe(
            Object({"prediction": Text((IN_TURNS, OF_THE_PLAN)), "run": Text((NOW, STORED)), "created": Text()})
        ),
        "error": Maybe(Object({"decode": Number(-1.0), "prefill": Number(-1.0)})),
        "rules_path": Maybe(Text()),
        "elapsed_s": Number(),
        "created": Text(),
        "kbench_version": Text(),
        "machine": Maybe(_MACHINE),
        "ceilings": ListOf(_CEILING, 10_000),
        "vram_curve": ListOf(_POINT, 1000),
        "what_if": ListOf(_WHAT_IF, 100),
        "sensitivity": ListOf(_GAIN, 100),
        "streaming": ListOf(_STREAMING, 64),
        "forms": ListOf(_FORM, 100),
        "presets": MapOf(Number(), 100),
        "rules_of_thumb": ListOf(_THUMB, 100),
        "block_sweeps": ListOf(_SWEEP, 1000),
        "rules": Text(),
    },
)


def tune_result_path(rules_path: Path) -> Path:
    """Where the result of the tune that wrote ``rules_path`` lies: ``model.yaml`` has ``model.tune.json``."""
    return rules_path.with_name(rules_path.stem + SUFFIX)


def write_tune_result(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes ``fields``, the JSON object without its schema; the file is whole or as it was.

    Raises:
        UserError: the place cannot be written.
    """
    text = (
        json.dumps({"schema": SCHEMA, **with_rules_of_thumb(fields)}, ensure_ascii=False, allow_nan=False, indent=1)
        + "\n"
    )
    write_whole(path, text.encode("utf-8", "replace"))


def read_tune_result(path: Path) -> dict[str, Any]:
    """The fields of a result, every one that this version knows checked for its type and range.

    ``path`` is what `kbench tune` stored, or printed with ``--json``; or a rule file, whose result lies beside it.

    Raises:
        UserError: there is no such file.
        CorruptFile: it is no result, or one of another version.
    """
    where = str(path)
    if path.suffix in (".yaml", ".yml"):
        beside = tune_result_path(path)
        if not beside.is_file():
            raise UserError(
                f"no result {beside.name} beside it",
                where=where,
                accepted=f"a result of `kbench tune`: FILE{SUFFIX}, or the rule file that lies beside it",
                todo="run kbench tune again: it writes both",
            )
        path, where = beside, str(beside)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        accepted = f"a result of `kbench tune`: FILE{SUFFIX}, or what --json printed"
        raise UserError(f"cannot be read: {error.strerror}", where=where, accepted=accepted) from None
    if len(data) > _MAX_BYTES:
        raise CorruptFile(f"more than {_MAX_BYTES >> 20} MiB", where=where, accepted=f"at most {_MAX_BYTES >> 20} MiB")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptFile("no JSON", where=where, accepted="a result of `kbench tune`") from None
    if isinstance(fields, dict) and fields.get("schema") != SCHEMA:
        found = json.dumps(fields.get("schema"))[:60]
        raise CorruptFile(f"schema {found}", where=where, accepted=f'"{SCHEMA}"')
    check_shape(fields, _RESULT, where)
    return dict(fields)
