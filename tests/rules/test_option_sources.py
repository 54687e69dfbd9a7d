"""The script that holds option grammars against the tools' sources: it reads each tool's way of writing."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "option_grammars.py"))
Differences = Callable[[str, str], list[str]]

LLAMA = """
    add_opt(common_arg(
        {"-t", "--threads"}, "N",
        string_format("threads (default: %d)", params.n_threads),
        [](common_params & params, int value) {}
    ));
    add_opt(common_arg(
        {"-m", "--model"}, "FNAME",
        ex == A ? "one" : "other",
        [](common_params & params, const std::string & value) {}
    ));
    add_opt(common_arg({"--no-host"}, "a help "
        "in two parts", [](common_params & params) {}));
    add_opt(common_arg(
        {"--op-offload"},
        {"--no-op-offload"},
        string_format("help %s", x),
        [](common_params & params, bool value) {}
    ));
"""
IK = """
    if (arg == "-t" || arg == "--threads") {
        CHECK_ARG
        return true;
    }
    if (arg == "-rtr" || arg == "--run-time-repack") {
        return true;
    }
    if (arg == "-ctk" || arg == "--cache-type-k") {
        params.cache_type_k = argv[++i];
        return true;
    }
"""


def test_the_readers_know_names_and_values() -> None:
    assert list(SCRIPT["in_llama_cpp"](LLAMA)) == [
        (frozenset({"-t", "--threads"}), True), (frozenset({"-m", "--model"}), True),
        (frozenset({"--no-host"}), False), (frozenset({"--op-offload", "--no-op-offload"}), False),
    ]  # fmt: skip
    assert list(SCRIPT["in_ik_llama_cpp"](IK)) == [
        (frozenset({"-t", "--threads"}), True), (frozenset({"-rtr", "--run-time-repack"}), False),
        (frozenset({"-ctk", "--cache-type-k"}), True),
    ]  # fmt: skip
    sglang = 'p.add_argument("--tp-size", "--tp", type=int)\np.add_argument("--x", action="store_true")\n'
    assert list(SCRIPT["in_sglang"](sglang)) == [(frozenset({"--tp-size", "--tp"}), True), (frozenset({"--x"}), False)]
    assert list(SCRIPT["in_ktransformers"]("def local_chat(a: int, b=1): pass")) == [
        (frozenset({"--a"}), True), (frozenset({"--b"}), True),
    ]  # fmt: skip


def test_what_differs_is_told() -> None:
    differences: Differences = SCRIPT["differences"]
    told = differences("ik_llama.cpp", IK.replace('"-t" || arg == "--threads"', '"-t"').replace("CHECK_ARG", ""))
    assert "--threads: not in the source" in told and "-t: there of -t" in told
    assert "-m: not in the source" in told and not any(line.startswith("-ctk") for line in told)
    assert "-rtr: there it takes a value" in differences(
        "ik_llama.cpp", IK.replace("{\n        return", "{\nCHECK_ARG")
    )


@pytest.mark.parametrize(
    ("tool", "package", "file"),
    [("sglang-kt", "sglang", "srt/server_args.py"), ("ktransformers", "ktransformers", "local_chat.py")],
)
def test_a_tool_that_is_installed_takes_what_the_grammar_says(tool: str, package: str, file: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"not runnable: {package} is not installed; it brings gigabytes of CUDA packages")
    source = Path(next(iter(spec.submodule_search_locations))) / file
    if not source.is_file() or (tool == "sglang-kt" and "--kt-method" not in source.read_text()):
        pytest.skip(f"not runnable: another {package} is installed")
    assert SCRIPT["differences"](tool, source.read_text()) == []
