"""What the GPU kernels do on a real GPU, in one table and in records, within some minutes.

    python scripts/gpu_check.py --minutes 8 --results results/local
    TRITON_INTERPRET=1 python scripts/gpu_check.py --small      # the same steps without a GPU: right or wrong, no speed

Builds nothing: torch, triton, this checkout and the packages it imports are enough; without the native module, CPU
experts run on torch. Every step is a process of its own with a limit, so that a crash or a hang is a row and not the
end. What a finished step found is in the records: the same command again goes on where time ran out.

Exit codes: 0 all there is, as expected; 1 slower than expected; 3 time ran out; 4 no GPU, or something to import is
missing; 5 a result is wrong, or a step broke.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = Path(__file__).with_name("gpu_check_steps.py")
NEEDED = ("torch", "triton", "numpy", "gguf", "yaml", "psutil", "scipy", "tokenizers", "jinja2", "typer", "rich")
SUITE = "gpu-check"
# A step is not begun with less.
_LEAST_SECONDS = 15.0
# What a share of the bandwidth is expected of: one token's products, and attention that reads a long past.
_BANDWIDTH_BARS = {"linear": 0.80, "mla_attention": 0.75}


@dataclass(frozen=True, slots=True)
class Step:
    """One process: ``name`` says what, it may take ``seconds``, and others may run beside it if it times nothing."""

    name: str
    seconds: float
    timed: bool = True


def steps(small: bool) -> list[Step]:
    """What there is to do, by what the implementations say they take."""
    sys.path.insert(0, str(Path(__file__).parent))
    import gpu_check_steps as of

    ops = [op for op in of.SHAPES if of.cases(op)]
    shards = range(1 if small else of.SHARDS)
    found = [Step("machine", 40)]
    found += [Step(f"correct {op} {i}", 150, timed=False) for op in ops for i in shards]
    found += [Step("transfers", 40)]
    names = dict.fromkeys(item.name for item in of.gpu_implementations())
    for name in names:
        for pattern in ("linear(*tokens=1)", "linear(*tokens=16)", "linear(*tokens=1024)", "mla_attention(*",
                        "moe_experts(*tokens=1)", "moe_experts(*tokens=64)"):  # fmt: skip
            if not small or pattern.endswith("=1)"):
                found.append(Step(f"compare {name} {pattern}", 90))
    return [*found, Step("hybrid", 120)]


def missing() -> str:
    """Why nothing can be checked here; empty where something can."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"cannot be imported: {', '.join(absent)}; carry them as wheels, or pip install them"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return ""
    import torch

    return (
        ""
        if torch.cuda.is_available()
        else "torch finds no CUDA device; TRITON_INTERPRET=1 with --small checks without"
    )


class Check:
    """Runs steps and keeps what they say."""

    def __init__(self, store: Any, small: bool, deadline: float, script: Path = STEPS) -> None:
        self.store, self.small, self.deadline, self.script = store, small, deadline, script
        self.rows: list[dict[str, Any]] = []
        self.finished: set[str] = set()
        self._lock = threading.Lock()
        self.interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def recall(self) -> None:
        """Finds the steps that finished before, at this commit, on this machine; their rows join the table."""
        from kbench.measure import host
        from kbench.results import current_commit

        here = [
            record
            for record in self.store.find(host_id=host().host_id)
            if record.commit == current_commit() and record.extra.get("small") == self.small
            and record.extra.get("interpreted") == self.interpreted and record.op.startswith("gpu_check")
        ]  # fmt: skip
        marks = [record for record in here if record.op == "gpu_check_step" and record.status == "ok"]
        self.finished = {str(record.problem["step"]) for record in marks}
        rows = {record.key: record.extra["row"] for record in here if record.op == "gpu_check"}
        self.rows += [row for row in rows.values() if row["step"] in self.finished]

    def run(self, step: Step) -> None:
        """One step to its end, or to its limit."""
        limit = min(step.seconds, self.left())
        if limit < _LEAST_SECONDS:
            return
        command = [sys.executable, str(self.script), step.name]
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "KBENCH_RESULTS": str(self.store.root)}
        begin = time.monotonic()
        process = subprocess.Popen(
            [*command, "--small"] if self.small else command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        end = threading.Timer(limit, lambda: os.killpg(process.pid, 9))
        end.start()
        assert process.stdout is not None and process.stderr is not None
        tail: list[str] = []
        reader = threading.Thread(target=lambda: tail.extend(list(process.stderr or ())[-6:]))
        reader.start()
        for said in process.stdout:
            if said.startswith("{"):
                self.keep({"step": step.name, **json.loads(said)})
        code = process.wait()
        reader.join()
        end.cancel()
        seconds = time.monotonic() - begin
        if code:
            late = seconds >= limit
            text = f"after {seconds:.0f} s" if late else f"exit {code}: {''.join(tail).strip()[-300:]}"
            self.keep({"step": step.name, "case": "the step", "result": "timeout" if late else "crashed", "text": text})
        else:
            self.finished.add(step.name)
        self.append("gpu_check_step", {"step": step.name}, "crashed" if code else "ok", {"seconds": seconds})

    def keep(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.rows.append(row)
        print(f"{row['step']}: {line(row)}", file=sys.stderr)
        self.append("gpu_check", {"step": row["step"], "case": row["case"]}, row["result"], {"row": row})

    def append(self, op: str, what: dict[str, Any], result: str, extra: dict[str, Any]) -> None:
        from kbench.results import Record

        row = extra.get("row", {})
        status = result if result in ("ok", "wrong", "crashed", "timeout", "unsupported") else "skipped"
        figure = status == "ok" and "value" in row and math.isfinite(row["value"])
        record = Record.make(
            (op, what), "gpu_check", device="cpu" if self.interpreted else "cuda:0", status=status,  # type: ignore[arg-type]
            reason=row.get("text", "") if status != "ok" else "", unit=row.get("unit", "rows"),
            direction="lower" if "at_most" in row else "higher", result=(row["value"],) if figure else (),
            extra={**extra, "small": self.small, "interpreted": self.interpreted},
        )  # fmt: skip
        with self._lock:
            self.store.append(record, suite=SUITE)


def shares(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of bytes over time, as shares of what this GPU reads at most."""
    roof = next((row["value"] for row in rows if row["case"] == "bandwidth"), None)
    for row in rows:
        if roof and "seconds" in row and "tokens=1" in row["case"] and "tokens=1024" not in row["case"]:
            side, _, key = row["case"].partition(", torch ")
            rate = row["bytes"] / row["seconds"] / 1e9
            expected = _BANDWIDTH_BARS.get(key.partition("(")[0])
            yield {
                "step": row["step"], "case": f"{side} {key}", "result": "ok", "value": rate / roof,
                "unit": "of the bandwidth", "text": f"{rate:.0f} GB/s", **({"at_least": expected} if expected else {}),
            }  # fmt: skip


def missed(row: dict[str, Any]) -> bool:
    """Whether a figure is not what is expected."""
    value = row.get("value")
    return row["result"] == "ok" and value is not None and not (
        row.get("at_least", -math.inf) <= value <= row.get("at_most", math.inf)
    )  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    words = [row["case"], "MISSED" if missed(row) else row["result"]]
    if "value" in row:
        words.append(f"{row['value']:.4g} {row['unit']}")
    words += [
        f"{text} {row[name]:g}" for name, text in (("at_least", "at least"), ("at_most", "at most")) if name in row
    ]
    return " | ".join([*words, *([row["text"]] if row.get("text") else [])])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Everything but what is merely right, of which there is one line for each operation."""
    right: dict[tuple[str, ...], int] = {}
    lines = []
    for row in rows:
        if row["step"].startswith("correct ") and row["result"] == "ok" and not missed(row):
            key = (*row["step"].split()[:2], row["case"].partition(" ")[0])
            right[key] = right.get(key, 0) + 1
        else:
            lines.append(f"{row['step']} | {line(row)}")
    sums = [
        f"{' '.join(key[:2])} | {key[2]} | {count} cases within their bounds" for key, count in sorted(right.items())
    ]
    return "\n".join([*sums, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="in which it ends")
    parser.add_argument(
        "--results", type=Path, default=None, help="folder of records; default: where kbench keeps them"
    )
    parser.add_argument("--small", action="store_true", help="few and small cases")
    parser.add_argument("--only", action="append", default=[], help="steps that begin so; may be given again")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    why = missing()
    if why:
        print(f"nothing to check: {why}", file=sys.stderr)
        return 4
    sys.path.insert(0, str(ROOT / "src"))
    from kbench.results import Store

    check = Check(Store(options.results), options.small, deadline)
    wanted = [s for s in steps(options.small) if not options.only or s.name.startswith(tuple(options.only))]
    check.recall()
    todo = [step for step in wanted if step.name not in check.finished]
    beside = [step for step in todo if not step.timed]
    for step in todo[:1]:
        check.run(step)
    # Interpreted kernels keep a processor busy each; compiling does, too.
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
        list(pool.map(check.run, [step for step in beside if step not in todo[:1]]))
    for step in todo[1:]:
        if step.timed:
            check.run(step)
    rows = [*check.rows, *shares(check.rows)]
    if check.interpreted:
        print("Triton interpreted: what is right or wrong, and nothing of speed")
    print(table(rows))
    left = [step.name for step in wanted if step.name not in check.finished]
    if left:
        print(f"not finished: {', '.join(left)}; the same command goes on")
    if any(row["result"] in ("wrong", "crashed", "timeout") for row in rows):
        return 5
    if any(missed(row) for row in rows):
        return 5 if any(missed(row) and row["step"].startswith("correct") for row in rows) else 1
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
