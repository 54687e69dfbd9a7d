"""Operators of somebody's own: named by a rule, run between native programs, and never run unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_oracle import relative_error
from test_against_transformers import TOLERANCE

from kbench.core import CPU, INJECTED, Device, Phase, Placement, UserError, parse_yaml
from kbench.engine import InjectedOperator, Session, load_model
from kbench.model import embedded, lower
from kbench.rules import assign, check, emit, parse_rules

ME = __name__
REFERENCE = Placement(generate_op="reference", prefill_op="reference")
# What the original of a module with an operator runs as.
AUTO = "generate_device: cpu, generate_op: auto"
IDS = np.random.default_rng(4).integers(0, 150, 20).tolist()
SEEN: list[Any] = []


class Watch(InjectedOperator):
    """Runs the original, and notes what it was asked for and when."""

    def __init__(self, *args: Any, label: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label = label

    def load(self) -> None:
        SEEN.append(("load", self.key))

    def forward(self, *inputs: Any) -> Any:
        SEEN.append((self.label or self.key, str(self.phase), self.state.position, [x.shape for x in inputs]))
        return super().forward(*inputs)


class Doubled(InjectedOperator):
    def forward(self, *inputs: Any) -> Any:
        return 2 * self.orig_module(*inputs)


class OwnMlp(InjectedOperator):
    """Computes by itself, from the file's numbers."""

    def load(self) -> None:
        self.gate = self.gate_proj.weight
        self.up = self.gguf_loader.load_gguf_tensor(f"{self.key}.up_proj.weight")
        self.down = self.gguf_loader.load_gguf_tensor("blk.1.ffn_down.weight")

    def forward(self, x: Any) -> Any:
        gate = x @ self.gate.T
        return (gate / (1 + np.exp(-gate)) * (x @ self.up.T)) @ self.down.T


class Short(InjectedOperator):
    def forward(self, *inputs: Any) -> Any:
        return inputs[0][:, :5]


class Twice(InjectedOperator):
    def forward(self, *inputs: Any) -> Any:
        return inputs[0], inputs[0]


class Complex(InjectedOperator):
    def forward(self, *inputs: Any) -> Any:
        return 1j * inputs[0]


class Forgetful(InjectedOperator):
    def __init__(self, key: str, **kwargs: Any) -> None:
        pass


class OwnExperts(InjectedOperator):
    """gpt-oss's."""

    def forward(self, x: Any, ids: Any, weights: Any) -> Any:
        made = np.zeros_like(x)
        for token, slot in np.ndindex(*ids.shape):
            e, row = ids[token, slot], x[token]
            gate = np.minimum(self.ffn_gate_exps[e] @ row + self.ffn_gate_exps_bias[e], 7)
            up = np.clip(self.ffn_up_exps[e] @ row + self.ffn_up_exps_bias[e], -7, 7)
            hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            made[token] += weights[token, slot] * (self.ffn_down_exps[e] @ hidden + self.ffn_down_exps_bias[e])
        return made


NOT_AN_OPERATOR = 3


def session(path: Path, name: str, operator: str, *, class_: str | None = None, kwargs: str = "") -> Session:
    """The model with ``operator`` of this file on the modules that ``name`` matches."""
    text = f"kbench: 1\nrules:\n- match: {{name: '{name}'}}\n  replace:\n    class: {class_ or f'{ME}.{operator}'}\n"
    text += f"    kwargs: {{{kwargs}}}\n"
    rules = parse_rules(parse_yaml(text), "r.yaml", trust=[ME])
    return load_model(path, rules, default=REFERENCE, context=64, chunk=8)


def run(model: Session) -> list[Any]:
    """Everything that a session does: chunks of a prompt, single tokens, logits of all tokens."""
    results = [model.prefill(IDS).copy(), model.decode(5).copy(), model.decode(6).copy()]
    model.reset()
    return [*results, model.logits(IDS).copy()]


@pytest.fixture(autouse=True)
def _forget() -> None:
    SEEN.clear()


@pytest.mark.parametrize(
    "name",
    [
        r"\.1\.mlp$", "self_attn$", r"layers\.1$", "q_proj", "down_proj", "layernorm", "^lm_head$", r"^model\.norm$",
        "embed_tokens", r"^model$", r"^model\.layers$",
    ],
)  # fmt: skip
def test_an_operator_that_runs_the_original_changes_nothing(tiny_gguf: Path, name: str) -> None:
    plain, watched = session(tiny_gguf, name, "", class_="default", kwargs=AUTO), session(tiny_gguf, name, "Watch")
    for expected, found in zip(run(plain), run(watched), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    loads = [seen for seen in SEEN if seen[0] == "load"]
    assert loads and SEEN[: len(loads)] == loads and len(set(loads)) == len(loads)
    assert {seen[1] for seen in SEEN[len(loads) :]} == {"prefill", "decode"}
    # 20 tokens in chunks of 8, two more, then all over again.
    assert sorted({seen[2] for seen in SEEN[len(loads) :]}) == [0, 8, 16, 20, 21]


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        (r"mlp\.router$", "Watch"),
        (r"\.1\.mlp$", "Watch"),
        (r"\.0\.self_attn$", "Watch"),
        (r"\.1\.mlp\.experts$", "OwnExperts"),
    ],
)
def test_modules_of_gpt_oss(tiny_models: dict[str, tuple[Path, Any]], name: str, operator: str) -> None:
    path, _ = tiny_models["gpt-oss"]
    expected = session(path, name, "", class_="default", kwargs=AUTO).logits(IDS)
    found = session(path, name, operator).logits(IDS)
    assert relative_error(found, expected) <= TOLERANCE


def test_native_kernels_run_the_original_too(tiny_gguf: Path) -> None:
    rules = parse_rules(
        parse_yaml(
            f"kbench: 1\nrules:\n- match: {{name: 'mlp$|self_attn$|lm_head'}}\n  replace: {{class: {ME}.Watch}}\n"
        ),
        trust=[ME],
    )
    plain, watched = load_model(tiny_gguf, context=64, chunk=8), load_model(tiny_gguf, rules, context=64, chunk=8)
    for expected, found in zip(run(plain), run(watched), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_an_operator_of_its_own_numbers(tiny_gguf: Path) -> None:
    plain = load_model(tiny_gguf, default=REFERENCE, context=64)
    own = session(tiny_gguf, r"layers\.1\.mlp$", "OwnMlp")
    np.testing.assert_allclose(own.prefill(IDS), plain.prefill(IDS), rtol=1e-4, atol=1e-5)
    doubled = session(tiny_gguf, r"layers\.1\.mlp$", "Doubled")
    assert np.abs(doubled.prefill(IDS) - plain.decode(5)).max() > 1e-3
    (call,) = [call for call in doubled.decode_calls if call.op == INJECTED]
    assert call.module == "model.layers.1.mlp" and call.problem.key == (
        f"injected(operator={ME}.Doubled,k=96,n=96,tokens=1)"
    )
    assert call.weights == tuple(f"blk.1.ffn_{part}.weight" for part in ("gate", "up", "down"))
    inside = [call.module for call in doubled.decode_calls if call.module.startswith("model.layers.1.mlp.")]
    assert inside == []


def test_one_phase_only(tiny_gguf: Path) -> None:
    kwargs = f"generate_op: {ME}.Watch, prefill_op: auto"
    model = session(tiny_gguf, r"layers\.1\.mlp$", "", class_="MLP", kwargs=kwargs)
    model.prefill(IDS)
    model.decode(1)
    assert {seen[1] for seen in SEEN if seen[0] != "load"} == {"decode"}


def test_operators_below_operators(tiny_gguf: Path) -> None:
    """The one above does the work; through the original it comes to the one below."""
    text = f"kbench: 1\nrules:\n- match: {{name: 'mlp$'}}\n  replace: {{class: {ME}.Watch}}\n"
    text += f"- match: {{name: 'down_proj$'}}\n  replace: {{class: {ME}.Doubled}}\n"
    nested = load_model(tiny_gguf, parse_rules(parse_yaml(text), trust=[ME]), default=REFERENCE, context=64)
    doubled = session(tiny_gguf, "down_proj$", "Doubled")
    np.testing.assert_allclose(nested.prefill(IDS), doubled.prefill(IDS), rtol=1e-4, atol=1e-4)
    assert [call.module for call in nested.decode_calls if call.op == INJECTED] == [
        f"model.layers.{layer}.mlp" for layer in range(3)
    ]


def test_recursive_false_makes_one_operator(tiny_gguf: Path) -> None:
    text = f"kbench: 1\nrules:\n- match: {{name: '1.mlp$'}}\n  replace: {{class: {ME}.Watch, kwargs: {{label: x}}}}\n"
    rules = parse_rules(parse_yaml(text + "  recursive: false\n"), trust=[ME])
    model = load_model(tiny_gguf, rules, default=REFERENCE, context=64)
    assert [seen for seen in SEEN if seen[0] == "load"] == [("load", "model.layers.1.mlp")]
    model.prefill(IDS)
    assert SEEN[1][0] == "x"


def test_attributes_fall_through_to_the_original(tiny_gguf: Path) -> None:
    model = session(tiny_gguf, r"layers\.1\.mlp$", "Watch")
    operator = model.operators["model.layers.1.mlp"]
    assert operator.gate_proj.weight.shape == (160, 96) and operator.gate_proj.key == "model.layers.1.mlp.gate_proj"
    assert operator.config is model.descriptor and operator.generate_device == "cpu"
    assert operator.orig_module.classes[0] == "MLP"
    operator.note = 1
    assert "note" in vars(operator)
    operator.gate_proj = "mine"  # the original's name: set there
    assert operator.orig_module.gate_proj == "mine" and "gate_proj" not in vars(operator)
    with pytest.raises(AttributeError, match="neither Watch nor the module that it replaces has an attribute 'gate'"):
        _ = operator.gate
    with pytest.raises(AttributeError, match="it has: gate_proj, up_proj, down_proj"):
        _ = operator.orig_module.gate
    with pytest.raises(UserError, match="2 inputs"):
        operator.orig_module(np.zeros((1, 96)), np.zeros((1, 96)))
    with pytest.raises(UserError, match=r"no tensor 'blk\.1\.ffn_upp\.weight'.*did you mean blk\.1\.ffn_up\.weight"):
        operator.gguf_loader.load_gguf_tensor("blk.1.ffn_upp.weight")
    assert operator.gguf_loader.has_tensor("blk.1.ffn_up.weight")
    assert operator.gguf_loader.get_mmap_tensor("blk.1.ffn_up.weight").nbytes == 4 * 160 * 96


@pytest.mark.parametrize(
    ("operator", "name", "kwargs", "complaint"),
    [
        (
            "Short",
            "mlp$",
            "",
            r"layers\.0\.mlp: .*Short returned an array of shape \(8, 5\), expected \(8, 96\)",
        ),
        ("Twice", "mlp$", "", "Twice returned 2 arrays"),
        ("Complex", "mlp$", "", r"layers\.0\.mlp: .*Complex returned an array of complex64, expected float32"),
        ("Watch", "mlp$", "labl: x", "Watch cannot be made from kwargs labl: .*unexpected keyword argument 'labl'"),
        ("Watch", "mlp$", "config: x", "config is set by kbench"),
        ("Forgetful", "mlp$", "", "does not call InjectedOperator.__init__"),
        ("NOT_AN_OPERATOR", "mlp$", "", "is no subclass of kbench.engine.InjectedOperator"),
        ("Wach", "mlp$", "", "has no 'Wach'.*did you mean Watch"),
        ("Watch", "rotary_emb$", "", r"does no work of its own.*replace model\.layers\.0\.self_attn"),
    ],
)
def test_mistakes_are_told(tiny_gguf: Path, operator: str, name: str, kwargs: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        session(tiny_gguf, name, operator, kwargs=kwargs).prefill(IDS)


def test_what_is_not_trusted_is_not_imported(tiny_gguf: Path) -> None:
    text = "kbench: 1\nrules:\n- match: {name: mlp$}\n  replace: {class: antigravity.Fly}\n"
    with pytest.raises(UserError, match="pass --trust antigravity"):
        load_model(tiny_gguf, parse_rules(parse_yaml(text)))
    # An assignment made by hand goes the same way.
    with pytest.raises(UserError, match="pass --trust antigravity"):
        load_model(tiny_gguf, {"model.layers.1.mlp": Placement(generate_op="antigravity.Fly")})
    assert "antigravity" not in sys.modules


def deepseek(names: Sequence[str], operator: str = "mine.Op") -> dict[str, Placement]:
    return {name: Placement(generate_op=operator, prefill_op=operator) for name in names}


def test_what_goes_in_and_out_of_deepseek_modules() -> None:
    model = embedded("deepseek-v2-chat")

    def calls(placed: dict[str, Placement]) -> tuple[Any, ...]:
        return lower(model, placed, Phase.DECODE, 1, 64, resolve=lambda problem, device: "reference")

    layer = "model.layers.1"
    names = [f"{layer}.self_attn", f"{layer}.mlp.gate", f"{layer}.mlp.experts", "model.layers.2.mlp"]
    found = {call.module: call for call in calls(deepseek(names)) if call.op == INJECTED}
    assert list(found) == names
    assert found[names[0]].inputs == (f"{layer}.input_layernorm",)
    assert [v.name for v in found[names[1]].outputs] == [f"{layer}.mlp.gate.ids", f"{layer}.mlp.gate.weights"]
    assert found[names[2]].inputs == (f"{layer}.post_attention_layernorm", *(v.name for v in found[names[1]].outputs))
    assert [v.name for v in found[names[3]].outputs] == ["model.layers.2.mlp"]
    with pytest.raises(UserError, match=r"used at several places of model\.layers\.1\.self_attn"):
        calls(deepseek([f"{layer}.self_attn.kv_b_proj"]))
    # On another device: one transfer there, one back.
    gpu = Device("cuda", 0)
    placed = {f"{layer}.mlp.experts": Placement(gpu, "mine.Op", gpu, "mine.Op", out_device=CPU)}
    moved = [call.inputs[0] for call in calls(placed) if call.op == "transfer"]
    assert moved == [*found[names[2]].inputs, f"{layer}.mlp.experts"]


def test_rules_with_own_operators_are_checked_and_written_back() -> None:
    from kbench.model import build_tree

    tree = build_tree(embedded("deepseek-v2-lite-chat"))
    text = (
        "kbench: 1\nrules:\n- match: {name: '^model\\.layers\\.[0-9]\\.mlp$'}\n  replace:\n    class: mine.Op\n"
        "    kwargs: {generate_device: 'cuda:0', threads: 2, scale: 0.5, names: [a, b], deep: {x: null}}\n"
    )
    rules = parse_rules(parse_yaml(text), trust=["mine"])
    assert [found for found in check(rules, tree) if found.severity != "info"] == []
    placed = assign(rules, tree)
    assert placed["model.layers.3.mlp"].kwargs == {"scale": 0.5, "names": ["a", "b"], "deep": {"x": None}}
    assert placed["model.layers.3.mlp.experts"].kwargs == {}
    written = emit(placed, tree, trust=["mine"])
    assert "class: mine.Op" in written and written.count("mine.Op") == 3  # the class, and the op of each phase
    assert assign(parse_rules(parse_yaml(written), trust=["mine"]), tree) == placed


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_operator"


def kbench(path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-m", "kbench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_the_example_from_outside(tiny_gguf: Path, tmp_path: Path) -> None:
    """As its user runs it: refused while it is only somewhere on the path, run once installed, or trusted."""
    rules = EXAMPLE / "rules.yaml"
    command = ["generate", tiny_gguf, "--rules", rules, "--raw", "-p", "ab", "-n", "4", "--temperature", "0"]
    alone, installed = tmp_path / "alone", tmp_path / "installed"
    for folder in (alone, installed):
        (folder / "sparse_mlp").mkdir(parents=True)
        source = (EXAMPLE / "sparse_mlp" / "__init__.py").read_text()
        (folder / "sparse_mlp" / "__init__.py").write_text(f"{source}\n\nprint('imported')\n")
    refused = kbench(alone, *command)
    assert refused.returncode == 2 and "imported" not in refused.stdout and "Traceback" not in refused.stderr
    assert "unknown operator 'sparse_mlp.SparseMlp'" in refused.stderr and "--trust sparse_mlp" in refused.stderr
    trusted = kbench(alone, *command, "--trust", "sparse_mlp")
    assert trusted.returncode == 0 and trusted.stdout.startswith("imported\n"), trusted.stderr
    # What pip would write.
    info = installed / "kbench_sparse_mlp-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kbench-sparse-mlp\nVersion: 0.1\n")
    project = (EXAMPLE / "pyproject.toml").read_text()
    (line,) = [line for line in project.splitlines() if line.startswith("sparse_mlp = ")]
    (info / "entry_points.txt").write_text(f"[kbench.operators]\n{line.replace(chr(34), '')}\n")
    ran = kbench(installed, *command)
    assert ran.returncode == 0 and ran.stdout == trusted.stdout, ran.stderr
    # Checking or explaining a file runs nothing of it.
    for verb in ("check", "explain"):
        told = kbench(installed, "rules", verb, rules, "--model", tiny_gguf)
        assert told.returncode == 0 and "imported" not in told.stdout and "Traceback" not in told.stderr, told.stderr
    assert "SparseMlp" in told.stdout


def test_the_example_computes_what_it_says(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    text = (EXAMPLE / "rules.yaml").read_text()
    plain = load_model(tiny_gguf, default=REFERENCE, context=64)
    expected = plain.prefill(IDS), plain.decode(7).copy()
    errors = []
    for keep in ("1.0", "0.9", "0.2"):
        rules = parse_rules(parse_yaml(text.replace("keep: 0.5", f"keep: {keep}")), trust=["sparse_mlp"])
        model = load_model(tiny_gguf, rules, default=REFERENCE, context=64)
        np.testing.assert_allclose(model.prefill(IDS), expected[0], rtol=1e-4, atol=1e-4)
        errors.append(float(np.abs(model.decode(7) - expected[1]).max()))
    assert errors[0] < 1e-4 < errors[1] < errors[2]
    with pytest.raises(UserError, match="keep is 2"):
        load_model(tiny_gguf, parse_rules(parse_yaml(text.replace("0.5}", "2}")), trust=["sparse_mlp"]))
