"""`kbench bench --routing`: which experts a model visits while it reads a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbench.core import UserError

from .output import print_json, progress_bar, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.engine import Session
    from kbench.results import Routing

# A text beyond this is none that a model reads in an evening.
_MAX_TEXT_BYTES = 64 << 20

# Each visits some experts in every layer: the share of an expert among a hundred is then known to a few percent.
_TOKENS = 4096

# Shares of the experts, most visited first, that the table tells the visits of.
_SHARES = (0.1, 0.25, 0.5)


def bench_routing(
    model: str, text: Path | None, tokens: int | None, threads: int | None, output: Path | None, as_json: bool
) -> None:
    """Reads at most ``tokens`` tokens of ``text``, or random ones, and stores how often each expert was visited.

    Raises:
        UserError: no such file, an empty text, a model without routed experts.
    """
    from kbench.measure import host
    from kbench.results import Store, routing_path, write_routing
    from kbench.suites import record_routing

    tokens = _TOKENS if tokens is None else tokens
    if tokens < 1:
        raise UserError(f"{tokens}", where="--tokens", accepted="at least 1")
    if output is not None and output.is_dir():  # known now; reading takes a while
        raise UserError("a directory", where=str(output), accepted="--output FILE.json")
    words = _words(text) if text is not None else None
    session = _load(model, threads)
    ids, name = _ids(session, words, tokens)
    with progress_bar() as bar:
        task = bar.add_task("reading (tokens)", total=len(ids))
        routing = record_routing(
            session, ids, name, session.cache.capacity, lambda done, _: bar.update(task, completed=done)
        )
    path = output or routing_path(Store().root, routing, host().host_id)
    write_routing(path, routing)
    if as_json:
        print_json("bench", 1, {"routing": _fields(routing), "path": str(path)})
        return
    _print_table(routing)
    stderr_console().print(f"{shown(routing.key)}: {shown(str(path))}", markup=False, soft_wrap=True)
    stderr_console().print(f"kbench tune --routing {shown(str(path))} plans with it", markup=False, soft_wrap=True)


def _words(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), accepted="a text file") from None
    if len(data) > _MAX_TEXT_BYTES:
        raise UserError(f"more than {_MAX_TEXT_BYTES >> 20} MiB", where=str(path), accepted="a shorter text")
    if not data.strip():
        raise UserError("no text", where=str(path), accepted="a text file")
    return data.decode("utf-8", "replace")


def _load(model: str, threads: int | None) -> Session:
    from kbench.engine import load_model
    from kbench.model import load_descriptor

    if load_descriptor(model)[0].moe is None:  # known now; loading takes a while
        raise UserError("no routed experts", where=model, accepted="a mixture of experts")
    with progress_bar() as bar:
        task = bar.add_task("packing weights (MiB)", total=None)
        return load_model(
            model,
            threads=threads,
            progress=lambda done, whole: bar.update(task, completed=done >> 20, total=whole >> 20),
        )


def _ids(session: Session, words: str | None, tokens: int) -> tuple[list[int], str]:
    """The tokens to read, and what the key says of them."""
    from kbench.suites import SEED, random_tokens, text_name

    if words is None:
        return random_tokens(session.descriptor.vocab, tokens), f"random:{SEED}"
    return session.tokenizer.encode(words)[:tokens], text_name(words)


def _fields(routing: Routing) -> dict[str, Any]:
    return {
        "key": routing.key,
        "experts": routing.experts,
        "top_k": routing.top_k,
        "tokens": routing.tokens,
        "layers": {str(layer): list(counts) for layer, counts in routing.visits.items()},
        "share_of_hottest": {f"{share:g}": routing.share_of_hottest(share) for share in _SHARES},
    }


def _print_table(routing: Routing) -> None:
    """One line a layer: how many experts were visited at all, and how the visits are spread."""
    from dataclasses import replace

    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("layer", "visited", *(f"hottest {share:.0%}" for share in _SHARES)):
        table.add_column(name, justify="right")
    for layer, counts in routing.visits.items():
        alone = replace(routing, visits={layer: counts})
        shares = (f"{alone.share_of_hottest(share):.0%}" for share in _SHARES)
        table.add_row(str(layer), f"{sum(n > 0 for n in counts)} of {routing.experts}", *shares)
    table.add_row("all", "", *(f"{routing.share_of_hottest(share):.0%}" for share in _SHARES), style="bold")
    stdout_console().print(table)
