"""The table of ARCHITECTURE.md, enforced. Edit both together."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "kbench"
BELOW_TUNER = "core measure model kernels rules results suites"
MAY_IMPORT = {
    "core": "",
    "measure": "core",
    "model": "core",
    "kernels": "core",
    "rules": "core",
    "results": "core measure",
    "engine": "core model kernels rules",
    "suites": "core measure model kernels rules engine results",
    "tuner": BELOW_TUNER,
    "report": "core results",
    "cli": f"{BELOW_TUNER} engine tuner report",
}
# Files beside the packages: __init__ and __main__ open onto everything, others have a rank like a package.
OPEN = ("__init__.py", "__main__.py")
FILES = {"pytest_plugin.py": "core measure kernels"}


def kbench_imports(path: Path, root: Path) -> Iterator[str]:
    """Dotted sources of every kbench import in a file, lazy and relative ones too."""
    here = ("kbench", *path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            sources = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            head = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [head, node.module]))
            sources = [f"kbench.{alias.name}" for alias in node.names] if base == "kbench" else [base]
        else:
            continue
        yield from (source for source in sources if source.split(".")[0] == "kbench" and "." in source)


def violations(root: Path) -> list[str]:
    """Every import under ``root`` that points up, or past a front door."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[0] in OPEN:
            continue
        below = FILES.get(parts[0], "") if len(parts) == 1 else MAY_IMPORT[parts[0]]
        for source in kbench_imports(path, root):
            target = source.split(".")[1]
            if target == parts[0] or not (root / target).is_dir():
                continue
            if target not in below.split():
                found.append(f"{path.relative_to(root)}: {parts[0]} may not import {target}")
            elif source != f"kbench.{target}":
                found.append(f"{path.relative_to(root)}: import kbench.{target}, not its inner {source}")
    return found


def test_imports_point_down_through_front_doors() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("package", "line", "complaint"),
    [
        ("core", "from kbench.model import x", "core may not import model"),
        ("model", "from ..kernels import x", "model may not import kernels"),
        ("rules", "def f():\n    import kbench.engine", "rules may not import engine"),
        ("engine", "from kbench.rules.schema import Rule", "not its inner kbench.rules.schema"),
        ("cli", "from ..core.errors import UserError", "not its inner kbench.core.errors"),
        ("engine", "from kbench import tuner", "engine may not import tuner"),
        ("", "from kbench.measure import x", "planted.py may not import measure"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, package: str, line: str, complaint: str) -> None:
    for name in MAY_IMPORT:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    assert violations(tmp_path) == []
    (tmp_path / package / "planted.py").write_text(line + "\n")
    assert len(violations(tmp_path)) == 1
    assert complaint in violations(tmp_path)[0]


def test_the_table_names_every_package_after_what_it_imports() -> None:
    seen: set[str] = set()
    for package, below in MAY_IMPORT.items():
        assert set(below.split()) <= seen
        seen.add(package)
    assert seen == {path.parent.name for path in ROOT.glob("*/__init__.py")}


def test_the_document_says_the_same() -> None:
    text = (ROOT.parents[1] / "ARCHITECTURE.md").read_text()
    for package in MAY_IMPORT:
        assert f"| `{package}` |" in text


def test_planning_waits_for_nothing_that_it_does_not_use() -> None:
    """Each takes as long to load as all of a plan takes to make: torch, scipy's optimizers, Optuna."""
    code = (
        "import sys, kbench.tuner.placement as p, kbench.report; from kbench.tuner.column import Column\n"
        "from kbench.cli.main import build_app; build_app()\n"
        "columns = (Column((0,), 0, (2.0, 2.0), (9, 0)), Column((1,), 1, (1.0, 1.0), (0, 9)))\n"
        "assert p.solve(p.PlacementProblem((columns,), (0, 0), (99, 9))).seconds == 3.0\n"
        "print(*[m for m in ('torch', 'scipy', 'optuna', 'transformers', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["kbench", "kbench.pytest_plugin"])
def test_import_kbench_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy == []
