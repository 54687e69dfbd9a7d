"""A git repository that is to kbench's revisions what kbench's own is: a package that pip builds in a second, whose
sides answer made-up times. A commit's ``SECONDS`` is how slow its kernels are."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

_BACKEND = """
import os, zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    {raises}
    name = "kbench_llm-0.0.1-py3-none-any.whl"
    info = "kbench_llm-0.0.1.dist-info"
    files = {{str(path.relative_to("src")): path.read_text() for path in Path("src").rglob("*.py")}}
    files[f"{{info}}/METADATA"] = "Metadata-Version: 2.1\\nName: kbench-llm\\nVersion: 0.0.1\\n"
    files[f"{{info}}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{{info}}/RECORD"] = "".join(f"{{each}},,\\n" for each in (*files, f"{{info}}/RECORD"))
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for each, text in files.items():
            wheel.writestr(each, text)
    return name
"""

# $FAKE_NOISE: how far times are apart, as a share; in another order on sides that are not as fast.
_SIDE = """
import itertools, json, os, sys

SECONDS = {seconds}
noise = float(os.environ.get("FAKE_NOISE", "0"))
step = 3 if SECONDS == 0.010 else 5
spread = itertools.cycle([1 + noise * (step * i % 7) / 7 for i in range(7)])
wobble = itertools.cycle([1.0, 1.001, 0.999, 1.002])
said = {{"call_seconds": SECONDS, "checksum": 1, "op_spec_hash": "{definition}", "error_share": 0.1, "cold": True,
        "prepared_bytes": 1, "kernel_version": "1"}}
print(json.dumps({{"about": {{"version": "fake"}}, "variants": ["open", "take"]}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["variant"] == "open":
        print(json.dumps(said), flush=True)
    else:
        print(json.dumps(SECONDS * next(wobble) * next(spread)), flush=True)
"""


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(
    repository: Path, tag: str, *, seconds: float = 0.010, raises: str = "", side: bool = True, definition: str = "h"
) -> str:
    """A commit called ``tag``; ``raises`` is what its build dies of, without ``side`` it cannot take part."""
    package = repository / "src/kbench"
    (package / "suites").mkdir(parents=True, exist_ok=True)
    (repository / "pyproject.toml").write_text(_PROJECT)
    (repository / "backend.py").write_text(_BACKEND.format(raises=f"raise RuntimeError({raises!r})" if raises else ""))
    (package / "__init__.py").write_text("")
    (package / "suites/__init__.py").write_text("")
    path = package / "suites/op_side.py"
    path.unlink(missing_ok=True)
    if side:
        path.write_text(_SIDE.format(seconds=seconds, definition=definition))
    if not (repository / ".git").exists():
        git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "-m", tag)
    git(repository, "tag", tag)
    return git(repository, "rev-parse", "HEAD")
