"""One machine of a fleet: searches a made-up space in a shared study, and prints what it measured as JSON.

``fleet_worker.py URL FOLDER [DIE_AT]``: with DIE_AT it stops for ever while it measures that cell, having printed so.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from recorded_space import RecordedSpace
from test_search import made_up, seconds_of

from kbench.results import Record
from kbench.suites import Cell
from kbench.tuner import search as search_module
from kbench.tuner.study import open_studies


def main(url: str, folder: str, die_at: str = "") -> None:
    search_module._DEAD_SECONDS = 2.0
    cells: list[str] = []

    def measure(cell: Cell, limit_seconds: float | None) -> Record:
        cells.append(str(cell))
        if len(cells) == int(die_at or 0):
            print(json.dumps({"cells": cells}), flush=True)
            time.sleep(600)
        time.sleep(0.05)
        return RecordedSpace.record(cell, seconds_of(cell))

    with open_studies(url, "host") as studies:
        study = studies.of(made_up(), "v1")
        # Both begin together.
        Path(folder, f"ready-{len(list(Path(folder).glob('ready-*')))}-{time.time_ns()}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        found = search_module.search(made_up(), study, measure, [], alone=studies.alone)
    best = [str(value) for value in found.best]
    print(json.dumps({"cells": cells, "known": len(found.records), "best": best, "reason": found.reason}))


if __name__ == "__main__":
    main(*sys.argv[1:])
