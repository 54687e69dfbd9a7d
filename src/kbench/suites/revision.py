"""A git revision of kbench, built in a worktree and a virtual environment of its own; kept, by content: a
commit that was reverted is not built again.

::

    <cache>/revisions/<tree12>-<key8>/
        venv/          kbench as it was then; everything else comes from the environment that runs this
        built.json     written last: a build that was killed has none, and is made again
        build.log      what the build said

Dependencies are shared, so that two revisions differ in kbench alone. The worktree is gone again after the build.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kbench.core import CheckBroken, InvalidEnvironment, UserError, default_threads, write_whole

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

# Lines of a build's log that an error quotes; of those that name an error, else the last.
_QUOTED_LINES = 12
# What a side needs of the revision that it runs.
_SIDE = "kbench/suites/op_side.py"
_BACKEND = ("scikit_build_core", "nanobind")

Tell = Callable[[str], None]


class BuildFailed(CheckBroken):
    """A revision cannot be built, or is older than what takes part in comparisons."""


@dataclass(frozen=True, slots=True)
class Revision:
    """``name`` as it was asked for, ``commit`` in full, ``time`` of the commit in ISO 8601, in ``repository``; ``tree``
    is git's hash of all its files."""

    name: str
    commit: str
    time: str
    tree: str
    repository: Path


@dataclass(frozen=True, slots=True)
class Built:
    """What runs one side: an interpreter with a kbench. ``commit`` is None for the one that runs this."""

    name: str
    python: str
    commit: str | None = None
    time: str = ""
    environment: Mapping[str, str] | None = None
    folder: Path | None = None


def installed() -> Built:
    """The kbench that runs this."""
    return Built("installed", sys.executable)


def repository_of(folder: Path) -> Path | None:
    """The git checkout of kbench that ``folder`` lies in, or None."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top or not (Path(top) / "src/kbench/suites").is_dir():
        return None
    return Path(top)


def find_revision(repository: Path, name: str) -> Revision:
    """The commit that ``name`` (a branch, tag, hash, ``HEAD~1``) stands for.

    Raises:
        UserError: it stands for none.
    """
    commit = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not commit:
        shallow = _git(repository, "rev-parse", "--is-shallow-repository") == "true"
        todo = "the clone is shallow: git fetch --unshallow (actions/checkout: fetch-depth: 0)" if shallow else ""
        raise UserError(f"no revision {name!r}", where=str(repository), accepted="what git rev-parse knows", todo=todo)
    time, _, tree = _git(repository, "show", "-s", "--format=%cI %T", commit).partition(" ")
    return Revision(name, commit, time, tree, repository)


def revisions_root() -> Path:
    """Where builds are kept: ``KBENCH_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get("KBENCH_CACHE"):
        return Path(chosen).expanduser() / "revisions"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbench" / "revisions"


def build(revision: Revision, *, root: Path | None = None, tell: Tell = lambda text: None) -> Built:
    """``revision`` ready to run: from the cache, or built now, which takes minutes.

    Raises:
        BuildFailed: with what the compiler said.
        InvalidEnvironment: git or pip is missing.
    """
    folder = (root or revisions_root()) / f"{revision.tree[:12]}-{_key()}"
    built = Built(
        revision.name, str(_python(folder / "venv")), revision.commit, revision.time, _environment(), folder
    )  # fmt: skip
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if _is_built(folder, revision.tree):
            return built
        tell(f"building {revision.name} ({revision.commit[:8]})")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _make(revision, folder)
        write_whole(folder / "built.json", json.dumps({"tree": revision.tree, "python": sys.version}).encode())
    return built


def _key() -> str:
    """What a build depends on beside the files: the interpreter, and whose dependencies it uses."""
    facts = (sys.version, platform.machine(), sys.prefix, *_dependency_folders())
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _is_built(folder: Path, tree: str) -> bool:
    try:
        said = json.loads((folder / "built.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("tree") == tree and _python(folder / "venv").exists()


def _make(revision: Revision, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kbench-") as scratch:
        source = Path(scratch) / "source"
        _run(["git", "-C", str(revision.repository), "worktree", "add", "--detach", "--force", str(source),
              revision.commit], folder, revision)  # fmt: skip
        try:
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder, revision)
            purelib = _packages(folder / "venv", "purelib")
            (purelib / "dependencies.pth").write_text("".join(f"{path}\n" for path in _dependency_folders()))
            _run(_install(folder, source), folder, revision, _compiling(source))
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    ["git", "-C", str(revision.repository), "worktree", "remove", "--force", str(source)],
                    capture_output=True, check=False, timeout=60,
                )  # fmt: skip
    if not any((path / _SIDE).is_file() for path in (purelib, _packages(folder / "venv", "platlib"))):
        raise BuildFailed(f"it has no {_SIDE}: it is older than comparisons of revisions", where=_where(revision))


def _install(folder: Path, source: Path) -> list[str]:
    if find_spec("pip") is None:
        raise InvalidEnvironment("pip is not installed here", where=sys.executable, todo="python -m ensurepip")
    command = [sys.executable, "-m", "pip", "--python", str(_python(folder / "venv")), "install", "--no-deps",
               "--ignore-installed", "--no-input", "--disable-pip-version-check"]  # fmt: skip
    # With what builds kbench at hand nothing is fetched; else pip fetches it, for the build alone.
    backend_is_here = all(find_spec(name) is not None for name in _BACKEND)
    return [*command, *(["--no-build-isolation"] if backend_is_here else []), str(source)]


def _compiling(source: Path) -> dict[str, str]:
    found = {"CMAKE_BUILD_PARALLEL_LEVEL": str(default_threads())}
    if shutil.which("ccache"):
        found |= {
            "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
            "CCACHE_BASEDIR": str(source),  # what did not change is not compiled again, wherever it lies
            "CCACHE_NOHASHDIR": "1",
        }
    return found


def _run(command: list[str], folder: Path, revision: Revision, more: Mapping[str, str] = {}) -> None:
    log = folder / "build.log"
    with log.open("ab") as file:
        begin = file.tell()
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False,
                env={**os.environ, **_environment(), **more},
            ).returncode  # fmt: skip
        except OSError as error:
            raise InvalidEnvironment(f"{command[0]} cannot be run: {error.strerror}", where=_where(revision)) from None
    if code:
        with log.open("rb") as file:
            file.seek(begin)
            lines = file.read().decode("utf-8", "replace").splitlines()
        # The log stays; what failed in it would otherwise be among thousands of lines.
        told = [line.strip() for line in lines if "error" in line.lower()] or lines
        quoted = "\n".join(told[:_QUOTED_LINES])
        raise BuildFailed(f"it cannot be built (exit code {code})\n{quoted}", where=_where(revision),
                          todo=f"the whole log: {log}")  # fmt: skip


def _where(revision: Revision) -> str:
    return f"{revision.name} ({revision.commit[:8]})"


def _dependency_folders() -> list[str]:
    """Where this environment's packages lie, its own first."""
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        own.append(site.getusersitepackages())
    # A virtual environment with access to the system's packages sees those too.
    own += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [path for path in dict.fromkeys(own) if Path(path).is_dir()]


def _environment() -> dict[str, str]:
    """Variables that keep this process's own kbench away from a revision's."""
    kept = [
        path
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and not (Path(path) / "kbench" / "__init__.py").is_file()
    ]
    return {"PYTHONPATH": os.pathsep.join(kept), "PYTHONNOUSERSITE": "1"}


def _python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _packages(venv: Path, kind: str) -> Path:
    """Where ``venv`` has its packages; ``kind``: purelib or platlib."""
    scheme = "nt" if os.name == "nt" else "posix_prefix"
    return Path(sysconfig.get_path(kind, scheme, {"base": str(venv), "platbase": str(venv)}))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time builds a revision; another one waits and finds it built."""
    if fcntl is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        raise InvalidEnvironment("git cannot be run", where=str(folder), todo="install git") from None
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
