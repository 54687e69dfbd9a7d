"""What deferring the CPU's experts by a layer costs a model in accuracy: next-token distributions against exact ones.

    python scripts/deferral_cost.py model.gguf --tokens 128
    python scripts/deferral_cost.py tiny --tokens 64

Both decode the same tokens one by one, those of ``--text`` or random ones, after a prompt that is prefilled exactly.
KL(exact || deferred) in nats, and the share of tokens where both hold the same next token likeliest. ``tiny``: models
of random weights, which tell that it works and how far it strays where nothing was learned; a trained model is another
matter.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kbench.core import CPU
from kbench.engine import Session, load_model
from kbench.model import load_descriptor, synthesize

Floats = npt.NDArray[np.float64]

PROMPT_TOKENS = 16
_SMALL = {
    "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 320, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
TINY = {
    "deepseek_v2": {
        "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
        "v_head_dim": 64, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "topk_method": "greedy", "moe_layer_freq": 1, "routed_scaling_factor": 1.0,
        "scoring_func": "softmax", "norm_topk_prob": False,
    },
    "qwen3_moe": {"num_experts": 8, "head_dim": 64, "norm_topk_prob": True, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
}  # fmt: skip


def log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    x = logits.astype(np.float64)
    x -= x.max()
    found: Floats = x - np.log(np.exp(x).sum())
    return found


def divergence(exact: Session, deferred: Session, tokens: Sequence[int]) -> tuple[Floats, float]:
    """KL of each token in nats, and the share with the same likeliest next token."""
    for session in (exact, deferred):
        session.reset()
        session.prefill(tokens[:PROMPT_TOKENS])
    kl, same = [], 0
    for token in tokens[PROMPT_TOKENS:]:
        a, b = (log_softmax(session.decode(token)) for session in (exact, deferred))
        kl.append(float((np.exp(a) * (a - b)).sum()))
        same += int(a.argmax() == b.argmax())
    return np.array(kl), same / len(kl)


def report(name: str, path: Path, text: str, n: int, threads: int | None) -> None:
    exact = load_model(path, context=n, threads=threads)
    deferred = load_model(path, context=n, threads=threads, weights=exact.weights, defer_experts=True)
    n_late = sum(call.op == "moe_experts" and call.device == CPU for call in deferred.decode_calls)
    rng = np.random.default_rng(0)
    tokens = exact.tokenizer.encode(text)[:n] if text else rng.integers(3, exact.descriptor.vocab, n).tolist()
    if n_late < 2 or len(tokens) <= PROMPT_TOKENS:
        print(f"{name}: nothing to defer ({n_late} layers with routed experts, {len(tokens)} tokens)")
        return
    kl, same = divergence(exact, deferred, tokens)
    print(
        f"{name}: {n_late} layers with routed experts, {len(kl)} tokens: KL mean {kl.mean():.4f}, median "
        f"{np.median(kl):.4f}, largest {kl.max():.4f} nats; same next token {100 * same:.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a GGUF file with routed experts, or tiny")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--text", type=Path, help="its tokens; by default random ones")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    text = given.text.read_text(encoding="utf-8") if given.text else ""
    if given.model != "tiny":
        report(Path(given.model).name, Path(given.model), text, given.tokens, given.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind, fields in TINY.items():
            config, path = Path(folder) / "config.json", Path(folder) / f"{kind}.gguf"
            config.write_text(json.dumps({"model_type": kind, **_SMALL, **fields}))
            synthesize(load_descriptor(str(config), "Q8_0")[0], path, seed=1)
            report(f"tiny {kind}", path, text, given.tokens, given.threads)


if __name__ == "__main__":
    main()
