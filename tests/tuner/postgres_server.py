"""A PostgreSQL server of one's own: on a free port, in a temporary folder, gone with the test."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_START_SECONDS = 60


def _program(name: str) -> str:
    """The newest of Debian's versions, which are not on the path; else what is."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    if found is None:
        pytest.skip(f"needs PostgreSQL: no {name} (Debian: apt-get install postgresql)")
    return found


def _as_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as its own user, or as nobody."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.skip("needs PostgreSQL: root has no user to run it as")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database."""
    initdb, postgres = _program("initdb"), _program("postgres")
    pytest.importorskip("psycopg")
    user = _as_user()
    with tempfile.TemporaryDirectory(prefix="kbench-postgres-") as folder:
        data = Path(folder) / "data"
        if user:
            os.chown(folder, user["user"], user["group"])
        made = subprocess.run(
            [initdb, "-D", data, "-U", "kbench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, cwd=folder, timeout=_START_SECONDS, **user,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        port = _free_port()
        options = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-k", folder, "-p", str(port)]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen([postgres, "-D", data, *options], stdout=log, stderr=log, cwd=folder, **user)
        try:
            _wait_for(port, server, Path(folder) / "log")
            yield f"postgresql://kbench@127.0.0.1:{port}/postgres"
        finally:
            # Fast: a smart shutdown (SIGTERM) waits for connections, which pools of this process may still hold.
            server.send_signal(signal.SIGINT)
            server.wait(timeout=_START_SECONDS)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    end = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=port, user="kbench", dbname="postgres").close()
            return
        assert server.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.1)
