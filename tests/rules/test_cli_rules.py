"""The verb `kbench rules`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import make_tiny
from typer.testing import CliRunner

from kbench.cli.main import build_app
from kbench.core import Phase, UserError, parse_yaml
from kbench.model import build_tree
from kbench.rules import parse_rules, tensor_map

FILE = Path(__file__).parent / "fixtures" / "deepseek_v2_one_gpu.yaml"
MODEL = ("--model", "deepseek-v2-chat")


def kbench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["rules", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_good_file_passes() -> None:
    code, out = kbench("check", FILE, *MODEL)
    assert code == 0 and out.splitlines()[-1].endswith("7 rules checked against deepseek-v2-chat: 1 info")


def test_errors_end_with_1_and_strict_makes_more_of_them(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("kbench: 1\nrules:\n- match: {name: nowhere}\n  replace: {class: Linear}\n")
    assert kbench("check", path)[0] == 0
    code, out = kbench("check", path, *MODEL)
    assert code == 0 and f"warning: {path}:3: rule 1, match · never matches a module" in out
    assert kbench("check", path, *MODEL, "--strict")[0] == 1
    path.write_text("- match: {name: lm_head}\n  replace: {class: Lineer}\n")
    code, out = kbench("check", path)
    assert code == 1 and "did you mean Linear?" in out
    assert kbench("check", FILE, *MODEL, "--devices", "cpu")[0] == 1


def test_explain_counts_what_crosses() -> None:
    """59 layers of routed experts on the CPU: hidden state, ids and weights down, one sum up; the token's row, the
    logits."""
    code, out = kbench("explain", FILE, *MODEL)
    (line,) = [line for line in out.splitlines() if line.startswith("transfers, decode")]
    assert code == 0 and line.startswith(
        "transfers, decode (a token): cpu to cuda:0 60 of 1.17 MiB together, cuda:0 to "
    )
    told = json.loads(kbench("explain", FILE, *MODEL, "--json")[1])["transfers"]
    assert told["decode"][0] == {"src": "cpu", "dst": "cuda:0", "n_transfers": 60, "n_bytes": 60 * 4 * 5120}


def test_json_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("- match: {name: lm_head}\n  replace: {class: Lineer}\n")
    code, out = kbench("check", path, "--json")
    told = json.loads(out)
    assert code == 1 and next(iter(told)) == "schema" and told["schema"] == "kbench.rules.check/1"
    assert told["counts"] == {"error": 1, "warning": 0, "info": 0}
    assert (told["findings"][0]["line"], told["findings"][0]["code"]) == (2, "unknown-operator")


def test_explain_shows_the_whole_or_one_module() -> None:
    code, out = kbench("explain", FILE, *MODEL)
    (row,) = [line for line in out.splitlines() if line.startswith("model.layers.1-59.mlp.experts")]
    assert code == 0 and row.split()[1:5] == ["line", "27", "KTransformersExperts", "cpu"] and row.endswith("GiB")
    # The file of DeepSeek-V2-Chat Q4_K_M has 142,449,930,240 bytes of tensors: all are somewhere.
    assert "decode, prefill: 126 GiB on cpu, 6.96 GiB on cuda:0" in out.splitlines()
    code, out = kbench("explain", FILE, "model.layers.3.mlp", *MODEL, "--json")
    told = json.loads(out)
    assert [row["module"] for row in told["rows"]][:2] == ["model.layers.3.mlp", "model.layers.3.mlp.experts"]
    with pytest.raises(UserError, match=r"did you mean model\.layers\.3\.mlp\.experts"):
        kbench("explain", FILE, "model.layers.3.mlp.expert", *MODEL)


def test_a_file_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UserError, match="no such file"):
        kbench("check", "nowhere.yaml")


def test_kernel_parameters_that_no_kernel_has(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    rule = "- match: {name: lm_head}\n  replace:\n    class: Linear\n    kwargs:\n      generate_device: cpu\n"
    path.write_text(rule + "      generate_op: cpu.scalar\n      block:\n        activation_plans: 1\n")
    code, out = kbench("check", path)
    assert code == 1
    assert f"{path}:8: rule 1, replace.kwargs.block.activation_plans · unknown kernel parameter" in out
    assert "did you mean activation_planes?" in out


def test_budgets_of_a_model(tmp_path: Path) -> None:
    assert kbench("check", FILE, *MODEL, "--vram", "24G", "--dram", "136G")[0] == 0
    code, out = kbench("check", FILE, *MODEL, "--vram", "2G", "--dram", "100G")
    assert code == 1 and out.count("over its budget") == 2
    assert f"error: {FILE}:34: rule 4, replace.kwargs.generate_device · 126 GiB on cpu, 25.7 GiB over its budget" in out
    with pytest.raises(UserError, match="add --model"):
        kbench("check", FILE, "--vram", "2G")


def test_a_budget_counts_cache_and_workspace_each_on_a_line(tmp_path: Path) -> None:
    """V2's one-GPU file has room for 4096 tokens, and not for 128 Ki: 576 numbers of 2 bytes in each of 60 layers."""
    assert kbench("check", FILE, *MODEL, "--vram", "8G")[0] == 0
    code, out = kbench("check", FILE, *MODEL, "--vram", "8G", "--context", 131072)
    lines = out[out.index("cuda:0: ") :].splitlines()
    assert code == 1 and lines[0] == "cuda:0: 15.5 GiB of 8 GiB"
    assert [line.rsplit("  ", 1)[0].strip() for line in lines[1:4]] == [
        "weights",
        "cache for 131072 tokens",
        "workspace",
    ]
    assert lines[2].split()[-2:] == ["8.44", "GiB"] and 576 * 2 * 60 * 131072 / 2**30 == 8.4375
    _, out = kbench("check", FILE, *MODEL, "--context", 131072, "--kv", "q8_0")
    assert out[out.index("cache for 131072 tokens") :].split()[4:6] == ["4.48", "GiB"]  # 34 bytes for 32 numbers
    told = json.loads(kbench("check", FILE, *MODEL, "--context", 131072, "--json")[1])["memory"]
    assert [(one["device"], one["budget_bytes"]) for one in told] == [("cpu", None), ("cuda:0", None)]
    assert told[1]["bytes"]["cache for 131072 tokens"] == 576 * 2 * 60 * 131072
    # Layer-wise prefill has one layer's experts on the GPU at a time, not all of them.
    path = tmp_path / "layerwise.yaml"
    path.write_text(FILE.read_text().replace("intput_threshold: 0", "intput_threshold: 1000"))
    _, out = kbench("check", path, *MODEL, "--vram", "99G")
    assert "one layer swapped in    2.28 GiB" in out and "cuda:0: 10.6 GiB of 99 GiB" in out


def test_operators_of_ones_own_where_they_cannot_be(tmp_path: Path) -> None:
    """`check` finds what loading would refuse; a module that has its work in one place is fine."""
    path = tmp_path / "r.yaml"
    rules = "kbench: 1\nrules:\n- match: {name: 'layers\\.[12]\\.mlp$'}\n  replace: {class: mine.Op}\n"
    path.write_text(rules)
    trusted = ("--model", "deepseek-v2-lite-chat", "--trust", "mine")
    assert kbench("check", path, *trusted)[0] == 0
    rules += "- match: {name: 'kv_b_proj$'}\n  replace:\n    kwargs:\n      generate_op: mine.Op\n"
    path.write_text(rules + "- match: {name: 'layers\\.7\\..*rotary_emb$'}\n  replace:\n    class: mine.Op\n")
    code, out = kbench("check", path, *trusted)
    assert code == 1
    assert (
        f"error: {path}:8: rule 2, replace.kwargs.generate_op · mine.Op would replace a module that is used at several "
        "places (model.layers.0.self_attn.kv_b_proj and 26 more) · replace model.layers.0.self_attn\n"
    ) in out
    assert (
        f"error: {path}:11: rule 3, replace.class · mine.Op would replace a module that does no work of its own" in out
    )


def test_every_tensor_that_a_file_lacks_is_told_at_once(tiny_gguf: Path, tmp_path: Path) -> None:
    """Beside the mistakes of the rules, and before any weight is read."""
    broken, path = tmp_path / "broken.gguf", tmp_path / "r.yaml"
    data = tiny_gguf.read_bytes()
    for name in (b"blk.1.ffn_up.weight", b"blk.2.attn_q.weight"):
        assert data.count(name) == 1
        data = data.replace(name, name[:-1] + b"x")
    broken.write_bytes(data)
    path.write_text("- match: {name: lm_head}\n  replace: {class: Lineer}\n")
    code, out = kbench("check", path, "--model", broken)
    assert code == 1 and out.splitlines()[:3] == [
        f"error: {broken}: blk.1.ffn_up.weight · this tensor is missing",
        f"error: {broken}: blk.2.attn_q.weight · this tensor is missing",
        f"error: {broken}: blk.1.ffn_up.weighx · 2 tensors that llama does not know, such as blk.1.ffn_up.weighx · "
        "the model would compute something else without them",
    ]
    assert "did you mean Linear?" in out
    told = json.loads(kbench("check", path, "--model", broken, "--json")[1])
    assert [(one["code"], one["path"], one["line"]) for one in told["findings"]][:3] == [
        ("model-tensor", str(broken), 0)
    ] * 3
    good = tmp_path / "good.yaml"
    good.write_text("kbench: 1\nrules:\n- match: {name: lm_head}\n  replace: {class: Linear}\n")
    assert kbench("check", good, "--model", broken, "--dram", "4G")[0] == 1
    assert kbench("check", good, "--model", tiny_gguf, "--dram", "4G")[0] == 0


def test_explain_maps_every_tensor_to_its_devices() -> None:
    told = json.loads(kbench("explain", FILE, *MODEL, "--tensors", "--json")[1])
    # The file of DeepSeek-V2-Chat Q4_K_M has 959 tensors, of 142,449,930,240 bytes.
    assert len(told["tensors"]) == 959 and sum(one["bytes"] for one in told["tensors"]) == 142_449_930_240
    rows = json.loads(kbench("explain", FILE, "model.layers.3", *MODEL, "--json")[1])["rows"]
    by_module = {row["module"]: row for row in rows}
    ours = [one for one in told["tensors"] if one["module"] in by_module]
    assert len(ours) == sum(one["tensor"].startswith("blk.3.") for one in told["tensors"]) > 10
    for one in ours:
        row = by_module[one["module"]]
        assert one["line"] == row["line"]
        for phase in ("decode", "prefill"):
            assert one[phase] == [{**row[phase], "bytes": one["bytes"]}]
    up = next(one for one in ours if one["tensor"] == "blk.3.ffn_up_exps.weight")
    assert (up["quant"], up["shape"], up["decode"][0]["device"]) == ("Q4_K", [5120, 1536, 160], "cpu")
    out = kbench("explain", FILE, "model.layers.3.mlp", *MODEL, "--tensors")[1].splitlines()
    (line,) = [line for line in out if line.startswith("blk.3.ffn_up_exps.weight")]
    assert line.split()[1:4] == ["Q4_K", f"{up['bytes']:,}", "cpu"]
    assert len(out) == 1 + 7 + 1 and out[-1].startswith("decode, prefill: ")


def test_experts_of_a_layer_may_be_on_two_devices(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "kbench: 1\nrules:\n- match: {name: 'layers\\.2\\.mlp\\.experts$'}\n  replace:\n    class: Experts\n"
        "    kwargs: {generate_device: cpu, prefill_device: cpu, gpu_experts: [0-15]}\n"
    )
    model = ("--model", "deepseek-v2-lite-chat")
    told = json.loads(kbench("explain", path, "model.layers.2.mlp.experts", *model, "--tensors", "--json")[1])
    assert len(told["tensors"]) == 3
    for one in told["tensors"]:
        for phase in ("decode", "prefill"):
            assert [(place["device"], 4 * place["bytes"]) for place in one[phase]] == [
                ("cpu", 3 * one["bytes"]),
                ("cuda:0", one["bytes"]),
            ]
    out = kbench("explain", path, "model.layers.2.mlp.experts", *model, "--tensors")[1]
    assert " MiB), cuda:0 auto (" in out


def test_a_tied_embedding_is_the_heads_too() -> None:
    tree = build_tree(make_tiny(tied=True))
    rules = parse_rules(
        parse_yaml("- match: {name: lm_head}\n  replace: {class: Linear, kwargs: {generate_device: 'cuda:1'}}\n")
    )
    rows = [row for row in tensor_map(rules, tree) if row.tensor.name == "token_embd.weight"]
    assert [row.module for row in rows] == ["model.embed_tokens", "lm_head"]
    assert str(rows[1].places[Phase.DECODE][0].device) == "cuda:1" != str(rows[0].places[Phase.DECODE][0].device)
