"""What a plan chose beside the placement: the cache's type, the tokens of a prefill step, and where experts prefill."""

from __future__ import annotations

import shlex

from kbench.core import format_bytes

from .chart import Fields
from .tables import rate

# What an engine does unless it is told: results of before there was a choice have it.
USUAL_KV, USUAL_CHUNK = "f16", 256


def streaming_lines(fields: Fields) -> list[str]:
    """A sentence for each GPU: from how many tokens bringing a layer's experts there beats the CPU."""
    return [_sentence(row) for row in fields.get("streaming", ())]


def _sentence(row: Fields) -> str:
    link, prepare = 1e3 * row["link_seconds"], row["prepare_seconds"]
    what = f"a layer's routed experts ({format_bytes(row['layer_bytes'])}, {rate(link)} ms on the link)"
    ready = _from(row["ready_tokens"])
    text = f"{row['device']}: bringing {what} there for each prefill step beats the CPU {ready} if they lie ready"
    if prepare is not None:
        text += f", and {_from(row['break_even_tokens'])} if they are prepared each time ({rate(prepare)} s)"
    text += f"; modelled, {row['label']}."
    if row["threshold"]:
        return f"{text} The rules do so for prompts of more than {row['threshold']:g} tokens."
    reason = row["obstacle"] or ("it would not make this workload faster" if prepare is not None else "")
    return f"{text} The rules do not ask for it{f': {reason}' if reason else ''}."


def _from(tokens: float | None) -> str:
    return "never" if tokens is None else "always" if tokens <= 1 else f"from {tokens:g} tokens on"


def form_rows(fields: Fields) -> list[list[str]]:
    """Each cache type and step that was planned, the chosen one marked; empty where there was no choice."""
    forms, work = fields.get("forms", ()), fields["workload"]
    if not forms:
        return []
    mine = (work.get("kv"), work.get("chunk"))
    best = next((f["workload_seconds"] for f in forms if (f["kv"], f["chunk"]) == mine), None)
    return [
        [
            form["kv"],
            f"{form['chunk']:g}",
            _time(form["workload_seconds"], best),
            "chosen" if (form["kv"], form["chunk"]) == mine else "",
        ]
        for form in forms
    ]


FORM_HEADER = ["cache", "tokens of a prefill step", "time of the workload", ""]


def _time(seconds: float | None, best: float | None) -> str:
    if seconds is None:
        return "does not fit"
    if not best or seconds == best:
        return f"{rate(seconds)} s"
    return f"{rate(seconds)} s ({(seconds / best - 1) * 100:+.1f} %)"


def run_options(fields: Fields) -> str:
    """What the engine must be told beside the rules, as options; with a blank before each."""
    work = fields["workload"]
    kv, chunk = work.get("kv", USUAL_KV), work.get("chunk", USUAL_CHUNK)
    prompt = work["prompt_tokens"]
    options = f" --kv {shlex.quote(kv)}" if kv != USUAL_KV else ""
    # A prompt that is shorter than a step is read in one.
    return options + (f" --chunk {chunk:g}" if chunk != min(USUAL_CHUNK, prompt) else "")
