"""Where searches keep what they have measured: an Optuna study for each space, in a file or a database.

A study is found by its name: machine, kernel version, implementation, problem and candidates. Another model with the
same layer shape therefore goes on where the last one stopped, and machines of the same kind that name the same database
share the work. No heartbeat is kept: a beat while something is being timed would disturb it, and trials that are asked
for and told have none. A trial whose worker died is told by how long it has been running instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import Study
from optuna.trial import TrialState

from kbench.core import InvalidEnvironment, KbenchError, UserError

from .cell_space import CellSpace

try:
    import fcntl
except ImportError:  # no flock: two searches at once would then disturb each other's times, and that is all
    fcntl = None  # type: ignore[assignment]

# Of names and attributes: a later form is another study.
_FORM = 1

# Seconds that a connection waits for a lock of SQLite, and tries to open a database that others open at the same time:
# Optuna makes its tables without a lock.
_LOCKED_SECONDS = 30
_OPEN_TRIES, _OPEN_PAUSE_SECONDS = 5, 0.3


def shown_url(url: str) -> str:
    """``url`` without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return "the storage"


def _file_of(url: str) -> Path | None:
    """The file of an SQLite URL."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise UserError(f"no URL: {str(error).splitlines()[0]}", where="--storage", accepted=_ACCEPTED) from None
    return Path(found.database) if found.get_backend_name() == "sqlite" and found.database else None


@contextlib.contextmanager
def _owned(path: Path) -> Iterator[None]:
    """Holds the lock beside ``path``: the kernel lets go of it when the process dies, however it does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path), todo="use --storage") from None
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidEnvironment(
                    "another search is using it, and two at once would time each other's noise",
                    where=str(path),
                    todo="wait for it, or give --storage",
                ) from None
        yield
    finally:
        os.close(descriptor)


def _database(url: str) -> BaseStorage:
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line for every trial belongs to nobody's terminal
    if url.startswith("postgresql://") and importlib.util.find_spec("psycopg"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)  # SQLAlchemy 2.0 would take psycopg2
    sqlite = url.startswith("sqlite")
    # A server may have closed a connection while a cell was measured.
    engine: dict[str, Any] = {"connect_args": {"timeout": _LOCKED_SECONDS}} if sqlite else {"pool_pre_ping": True}
    for tries_left in reversed(range(_OPEN_TRIES)):
        try:
            return RDBStorage(url, engine_kwargs=engine)
        except ImportError as error:
            raise UserError(
                f"the database driver {error.name or error} is missing",
                where=shown_url(url),
                todo="pip install 'psycopg[binary]' for PostgreSQL",
            ) from None
        except (ArgumentError, ValueError) as error:
            raise UserError(f"no storage: {error}".splitlines()[0], where="--storage", accepted=_ACCEPTED) from None
        except RuntimeError as error:
            # Of another Optuna version.
            todo = "optuna storage upgrade --storage URL, or another --storage"
            raise UserError(str(error).splitlines()[0], where=shown_url(url), todo=todo) from None
        except SQLAlchemyError as error:
            if not tries_left:
                raise _unreachable(url, error) from None
            time.sleep(_OPEN_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


_ACCEPTED = "a file, or a URL such as postgresql://user@host/database"


def _unreachable(url: str, error: Exception) -> KbenchError:
    lines = str(getattr(error, "orig", None) or error).splitlines()
    return UserError(f"the storage cannot be used: {lines[0] if lines else error}", where=shown_url(url))


@contextlib.contextmanager
def _told_plainly(url: str) -> Iterator[None]:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise _unreachable(url, error) from None


@dataclass(frozen=True, slots=True)
class Studies:
    """The studies of machines of one kind. ``alone``: nobody else is at work in them."""

    storage: BaseStorage
    alone: bool
    host_id: str

    def of(self, space: CellSpace, version: str) -> Study:
        """The study of ``space`` for kernels of ``version``, made if it is not there; what a dead search left running
        is given up."""
        name = f"kbench-{_FORM} {self.host_id} {version} {space.implementation} {space.problem.key} {space.digest}"
        study = optuna.create_study(study_name=name, storage=self.storage, direction="minimize", load_if_exists=True)
        if self.alone:
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                give_up(study, trial.number)
        return study


def give_up(study: Study, number: int) -> None:
    """Ends a trial whose worker is no more; what it was to measure is free again."""
    study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


@contextlib.contextmanager
def open_studies(where: str | Path | None, host_id: str) -> Iterator[Studies]:
    """The studies at ``where``: a file (SQLite), the URL of a database, or None for memory.

    A file belongs to one search at a time. What a database raises, then or later, becomes one message.

    Raises:
        UserError: the URL is none, its driver is missing, or nobody answers there.
        InvalidEnvironment: another search has the file.
    """
    if where is None:
        yield Studies(InMemoryStorage(), True, host_id)
        return
    text = str(where)
    url = text if "://" in text else f"sqlite:///{Path(text).absolute()}"
    path = _file_of(url)
    with _owned(path) if path else contextlib.nullcontext(), _told_plainly(url):
        yield Studies(_database(url), path is not None, host_id)
