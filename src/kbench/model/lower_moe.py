"""A layer's mixture of experts."""

from __future__ import annotations

from kbench.core import Problem, Value

from .architectures import architecture, class_family
from .draft import Draft
from .lower_experts import Routed, lower_experts


def lower_moe(draft: Draft, index: int, x: str) -> str:
    """Router, routed experts (``lower_experts``) and, beside them, the shared experts; then their sum, of which the
    shared experts' part may be weighed by a sigmoid."""
    m, family, block = draft.model, class_family(draft.model), f"blk.{index}"
    module, e = f"model.layers.{index}.{family.moe_name}", m.moe
    assert e is not None
    gate = draft.tensor(f"{block}.ffn_gate_inp.weight")
    router = f"{module}.{family.router_name}"
    logit_bias, correction = (draft.present(f"{block}.{name}.bias") for name in ("ffn_gate_inp", "exp_probs_b"))
    problem = Problem.make("moe_router", quant=gate.quant, experts=e.experts, top_k=e.top_k, k=m.d, tokens=draft.tokens)
    ids, weights = Value(f"{router}.ids", e.top_k, dtype="i32"), Value(f"{router}.weights", e.top_k)
    draft.emit(
        problem,
        router,
        (x,),
        (ids, weights),
        (gate.name, *logit_bias, *correction),
        {
            "scoring": e.scoring,
            "n_group": e.n_group,
            "topk_group": e.topk_group,
            "norm_topk_prob": int(e.norm_topk_prob),
            "routed_scaling": e.routed_scaling,
            **({"logit_bias": 1} if logit_bias else {}),
        },
    )
    clamp = architecture(m.architecture).clamp
    parts = [draft.tensor(f"{block}.ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
    problem = Problem.make(
        "moe_experts",
        experts=e.experts,
        top_k=e.top_k,
        n=e.n,
        k=m.d,
        quant_gate=parts[0].quant,
        quant_up=parts[1].quant,
        quant_down=parts[2].quant,
        tokens=draft.tokens,
    )
    made = lower_experts(
        draft,
        Routed(
            problem,
            f"{module}.experts",
            router,
            x,
            ids,
            weights,
            (
                *(part.name for part in parts),
                *draft.present(*(part.name.replace(".weight", ".bias") for part in parts)),
            ),
            {} if clamp is None else {"activation": "clamped_swiglu", "alpha": clamp[0], "limit": clamp[1]},
        ),
    )
    # In a GPU's order the shared experts come first: behind the sum they would wait for the CPU.
    shared = draft.mlp(f"{module}.{family.shared_name}", x, f"{block}.ffn_{{}}_shexp") if e.shared else ""
    routed = made[0] if len(made) == 1 else draft.add(module, made[0], made[1], f"{module}.experts")
    if not e.shared:
        return routed
    if not e.shared_gate:
        return draft.add(module, routed, shared, module)
    return draft.emit(
        Problem.make("gated_add", d=m.d, tokens=draft.tokens),
        f"{module}.shared_expert_gate",
        (routed, shared, x),
        (Value(module, m.d),),
        (f"{block}.ffn_gate_inp_shexp.weight",),
    )
