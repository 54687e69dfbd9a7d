"""A side that times an engine: ``python -m kbench.suites.engine_side MODEL --engine llama.cpp --threads 2 ...``.

A turn is one prefill of the request's ``prompt`` into an empty cache and one decode of its ``generated`` tokens after
its ``beginning``: ``[seconds of prefill, seconds of decode]``; with ``logits`` the logits after the beginning.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kbench.core import KbenchError
from kbench.engine import engine_turns
from kbench.measure import refuse, serve
from kbench.results import current_commit


def main() -> None:
    """Answers until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--rules", type=Path)
    options = parser.parse_args()
    try:
        turns, about = engine_turns(options.engine, options.model, options.threads, options.context, options.rules)
    except KbenchError as error:
        refuse(error)
        return
    if options.engine.startswith("kbench"):
        about = about | {"commit": current_commit()}
    serve(turns, about)


if __name__ == "__main__":
    main()
