"""`kbench bench --perplexity`: how well a model predicts a text, and how far it strays from another on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbench.core import UserError

from .bench_output import progress_of
from .output import print_json, shown, stderr_console, stdout_console

# A text beyond this would take days.
_MAX_TEXT_BYTES = 64 << 20


def measure_perplexity(
    model: str, text: Path | None, against: str, window: int | None, threads: int | None, as_json: bool
) -> None:
    """Measures and prints it."""
    from kbench.core import default_threads
    from kbench.engine import load_model
    from kbench.measure import host
    from kbench.model import model_stem
    from kbench.results import Store
    from kbench.suites import WINDOW, english, perplexity, perplexity_fields, perplexity_record

    words = english() if text is None else _read(text)
    name = "english" if text is None else text.stem
    window, threads = window or WINDOW, threads or default_threads()
    session = load_model(model, context=window, threads=threads)
    reference = load_model(against, context=window, threads=threads) if against else None
    with progress_of("perplexity", 1) as progress:
        own, ref, apart = perplexity(session, words, window=window, against=reference, progress=progress)
    fields = perplexity_fields(own, ref, apart)
    record = perplexity_record(
        model_stem(Path(model)), name, model_stem(Path(against)) if against else "", threads, own, fields
    )
    store = Store()
    store.append(record, suite="perplexity")
    said = {"model": model, "quant": session.descriptor.quant, "against_model": against or None, "text": name}
    if as_json:
        print_json("bench", 1, {"host_id": host().host_id, **said, **fields})
        return
    for line in _lines(session.descriptor.quant, reference.descriptor.quant if reference else "", fields):
        stdout_console().print(shown(line), markup=False, soft_wrap=True)
    stderr_console().print(f"{name}, {own.n_windows} windows of {window} tokens; record in {store.root}", markup=False)


def _lines(quant: str, other: str, said: dict[str, Any]) -> list[str]:
    def between(name: str, of: dict[str, Any]) -> str:
        low, high = of[name]
        return f"[{low:.4g}, {high:.4g}]"

    lines = [f"perplexity {said['perplexity']:.4f} {between('interval', said)}  {quant}, {said['n_tokens']} tokens"]
    if "against" in said:
        a = said["against"]
        lines += [
            f"           {a['perplexity']:.4f} {between('interval', a)}  {other}",
            f"ratio      {a['ratio']:.4f} {between('ratio_interval', a)}",
            f"KL         {a['kl_mean']:.5f} {between('kl_interval', a)} nats; median {a['kl_median']:.5f}, "
            f"99 % below {a['kl_p99']:.4f}, most {a['kl_max']:.4f}",
            f"same likeliest token {a['same_top']:.1%}",
        ]
    return lines


def _read(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read(_MAX_TEXT_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"no UTF-8 at byte {error.start}"
        raise UserError(f"cannot be read: {why}", where=str(path), accepted="a UTF-8 text file") from None
    if len(text) > _MAX_TEXT_BYTES:
        raise UserError("too long", where=str(path), accepted=f"at most {_MAX_TEXT_BYTES} characters")
    return text
