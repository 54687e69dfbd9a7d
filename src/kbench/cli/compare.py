"""`kbench compare`: two implementations, engines or rule files against each other, in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import CheckBroken, ConditionFailed, Inconclusive, UserError, default_threads

from .output import print_json, progress_bar, shown, stderr_console, stdout_console

if TYPE_CHECKING:
    from kbench.core import Problem
    from kbench.suites import Outcome

_HELP = """Compare two implementations, two engines or two rule files on this machine, in pairs.

Each side is a process of its own; they take turns A B, B A, ... with the same inputs, cold caches and as many threads.
Correctness comes first: a side whose result is wrong is an error, not a fast one. The verdict has a known error rate
(docs/statistics.md): the ratio with its interval against a margin, more pairs while that is inconclusive, fresh pairs
before anything is called a change.

A and B are

  implementations    torch, cpu.avx2, cpu.scalar, kt, marlin, triton, ...; cpuinfer is the best of our CPU kernels
                     here, with KTransformers' own beside it where kt-kernel is installed

  engines            kbench, llama.cpp, ik_llama.cpp with --model; options follow: kbench:planes=1

  rule files         a.yaml b.yaml with --model

Examples:

  [bold]kbench compare cpuinfer torch[/bold]

  [bold]kbench compare kbench llama.cpp --model smollm2.gguf[/bold]

  [bold]kbench compare old.yaml new.yaml --model smollm2.gguf --fail-on-regression[/bold]
"""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("compare", help=_HELP)
    def _compare(
        a: Annotated[str, typer.Argument(metavar="A", help="An implementation, an engine or a rule file.")],
        b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
        model: Annotated[
            str | None,
            typer.Option(help="A .gguf file; for implementations a config.json or an embedded model's name will do."),
        ] = None,
        suite: Annotated[str, typer.Option(help="Shapes for implementations: a suite's name or file.")] = "compare",
        pattern: Annotated[
            str, typer.Option("--filter", metavar="KEY", help="Only cases that hold or glob this.")
        ] = "",
        threads: Annotated[int | None, typer.Option(help="Of both sides. Default: one per physical core.")] = None,
        margin: Annotated[
            float | None, typer.Option(help="Least change of interest, in percent. Default: 3, engines 5.")
        ] = None,
        max_seconds: Annotated[
            float | None, typer.Option(help="Of pairs, before confirmation: of a shape 15, of engines 100.")
        ] = None,
        prompt_tokens: Annotated[int, typer.Option(min=1, help="Prefill of a turn.")] = 128,
        gen_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a turn generates.")] = 16,
        fail: Annotated[bool, typer.Option("--fail-on-regression", help="Exit with 1 when B is slower.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        from kbench.engine import ENGINES
        from kbench.measure import Guard, host
        from kbench.report import print_comparison
        from kbench.results import Store

        if margin is not None and not 0 <= margin < 100:
            raise UserError(f"{margin:g}", where="--margin", accepted="percent, from 0 to below 100")
        share = None if margin is None else margin / 100
        threads = threads or default_threads()
        kind = _kind(a, b, ENGINES)
        store, guard = Store(), Guard()
        notes: list[str] = []
        if kind == "implementations":
            outcomes, notes = _implementations(a, b, model, suite, pattern, threads, share, max_seconds, store)
        else:
            sizes = (prompt_tokens, gen_tokens)
            outcomes = _engines(kind, a, b, model, threads, share, max_seconds, sizes, store)
        warnings = list(guard.warnings())
        fields: dict[str, Any] = {
            "kind": kind, "a": a, "b": b, "host_id": host().host_id, "threads": threads,
            "cases": [_case(outcome) for outcome in outcomes], "summary": _summary(kind, outcomes),
            "notes": notes, "warnings": warnings,
        }  # fmt: skip
        if as_json:
            print_json("compare", 1, fields)
        else:
            print_comparison(stdout_console(), fields, shown)
            for text in (*notes, *(f"warning: {warning}" for warning in warnings)):
                stderr_console().print(shown(text), markup=False)
            stderr_console().print(f"{len(outcomes)} comparisons on host {host().host_id}; records in {store.root}")
        _judge_exit(outcomes, fail)


def _kind(a: str, b: str, engines: tuple[str, ...]) -> str:
    """What ``a`` and ``b`` are; UserError when they are not of one kind."""

    def of(name: str) -> str:
        if name.endswith((".yaml", ".yml")):
            return "rules"
        return "engines" if name.partition(":")[0] in engines else "implementations"

    kinds = of(a), of(b)
    if kinds[0] != kinds[1]:
        words = {"rules": "a rule file", "engines": "an engine", "implementations": "an implementation"}
        raise UserError(
            f"{a} is {words[kinds[0]]}, {b} is {words[kinds[1]]}",
            accepted="two implementations, two engines, or two rule files",
        )
    return kinds[0]


def _implementations(
    a: str, b: str, model: str | None, suite: str, pattern: str, threads: int, margin: float | None,
    max_seconds: float | None, store: Any,
) -> tuple[list[Outcome], list[str]]:  # fmt: skip
    from kbench.measure import Plan
    from kbench.suites import check_names, compare_ops, contests, expand, load_suite, matches, missing_peers

    check_names((a, b))
    problems: list[Problem]
    if model is not None:
        problems = _problems_of(model)
    else:
        problems = list(dict.fromkeys(cell.problem for cell in expand(load_suite(suite))))
    chosen = [problem for problem in problems if matches(problem.key, pattern)]
    if not chosen:
        examples = ", ".join(problem.key for problem in problems[:3])
        raise UserError(f"filter {pattern!r} matches no case", accepted=f"a part or glob of keys such as {examples}")
    wanted = contests(chosen, a, b, threads)
    plan = Plan() if margin is None else Plan(margin=margin)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("compare", total=len(wanted))

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70] or "compare")

        return compare_ops(wanted, store, plan, progress=progress, **options), missing_peers(chosen, (a, b))


def _problems_of(model: str) -> list[Problem]:
    """What a model computes in decode and in a prefill step, each problem once."""
    from kbench.core import AUTO, Phase
    from kbench.model import load_descriptor, lower

    descriptor, _ = load_descriptor(model)
    found: dict[Problem, None] = {}
    for phase, tokens, context in ((Phase.DECODE, 1, 1024), (Phase.PREFILL, 64, 1024)):
        calls = lower(descriptor, {}, phase, tokens, context, resolve=lambda problem, device: AUTO)
        found |= dict.fromkeys(call.problem for call in calls if call.op != "transfer")
    return list(found)


def _engines(
    kind: str, a: str, b: str, model: str | None, threads: int, margin: float | None, max_seconds: float | None,
    sizes: tuple[int, int], store: Any,
) -> list[Outcome]:  # fmt: skip
    from kbench.model import describe_gguf, open_gguf
    from kbench.rules import load_rules
    from kbench.suites import Workload, compare_engines, engine_plan, engine_sides, rule_sides

    if model is None:
        raise UserError(f"{kind} need a model to run", where="--model", accepted="a .gguf file")
    path, workload = Path(model), Workload(*sizes)
    describe_gguf(open_gguf(path))  # a file that is not there, or none, is told before anything starts
    if kind == "rules":
        for file in (a, b):
            load_rules(Path(file))
        sides = rule_sides((Path(a), Path(b)), path, threads, workload)
    else:
        sides = engine_sides((a, b), path, threads, workload)
    options: dict[str, Any] = {} if max_seconds is None else {"max_seconds": max_seconds}
    with progress_bar() as bar:
        task = bar.add_task("loading", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:70])

        return compare_engines(
            path, sides, store, threads=threads, workload=workload, plan=engine_plan(margin), progress=progress,
            **options,
        )  # fmt: skip


def _case(outcome: Outcome) -> dict[str, Any]:
    from kbench.measure import median

    judgement = outcome.judgement
    return {
        "case": outcome.key,
        "a": outcome.a,
        "b": outcome.b,
        "status": outcome.status,
        "reason": outcome.reason,
        "verdict": judgement and judgement.verdict.value,
        "ratio": judgement and judgement.ratio,
        "interval": judgement and [judgement.interval.low, judgement.interval.high],
        "confidence": judgement and judgement.interval.confidence,
        "n_pairs": judgement.n_pairs if judgement else 0,
        "n_confirmed_by": len(judgement.confirmed_by) if judgement else 0,
        "a_seconds": median(outcome.a_samples) if outcome.a_samples else None,
        "b_seconds": median(outcome.b_samples) if outcome.b_samples else None,
        **{key: outcome.extra[key] for key in ("margin", "tokens", "subset", "logits_apart") if key in outcome.extra},
    }


def _summary(kind: str, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """A geometric mean for each pair of implementations that were compared on several cases. Prefill and decode of
    engines come from the same pairs: their noise is no two cases'."""
    from kbench.measure import Verdict, judge_mean

    if kind != "implementations":
        return []
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.judgement is not None:
            groups.setdefault((outcome.a, outcome.b), []).append(outcome)
    found = []
    for (a, b), members in groups.items():
        if len(members) == 1:
            continue
        judgements = [outcome.judgement for outcome in members if outcome.judgement is not None]
        verdict, ratio, interval = judge_mean(judgements, members[0].extra["margin"])
        counts = {word.value: sum(j.verdict is word for j in judgements) for word in Verdict}
        found.append(
            {
                "a": a, "b": b, "n_cases": len(members), "verdict": verdict.value, "ratio": ratio,
                "interval": [interval.low, interval.high], "counts": {word: n for word, n in counts.items() if n},
            }
        )  # fmt: skip
    return found


def _judge_exit(outcomes: list[Outcome], fail: bool) -> None:
    """Raises for what is wrong, slower (if asked for) or not known; in this order."""
    broken = [outcome for outcome in outcomes if outcome.status in ("wrong", "crashed")]
    if broken:
        first = broken[0]
        raise CheckBroken(f"{len(broken)} of {len(outcomes)} cases {first.status}: {first.reason}", where=first.key)
    judged = [outcome for outcome in outcomes if outcome.judgement is not None]
    if not judged:
        raise UserError("nothing could be compared", where=outcomes[0].key, accepted="shapes that both sides run",
                        todo=outcomes[0].reason)  # fmt: skip
    slower = [o for o in judged if o.judgement is not None and o.judgement.verdict.value == "REGRESSED"]
    if fail and slower:
        raise ConditionFailed(f"{slower[0].b} is slower in {len(slower)} of {len(judged)} cases", where=slower[0].key)
    if all(o.judgement is not None and o.judgement.verdict.value == "INCONCLUSIVE" for o in judged):
        raise Inconclusive("no case is known to differ or to be the same", todo="a quiet machine, or --max-seconds")
