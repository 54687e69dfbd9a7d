"""`kbench generate`: one prompt, one answer, streamed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbench.core import UserError

from . import run_options as opt
from .output import print_json, shown

if TYPE_CHECKING:
    from kbench.engine import Generation, Session

_HELP = """Generate text with a GGUF model, streamed to stdout; speeds go to stderr.

The prompt becomes a user's message in the model's chat template where it has one; --raw continues the text as it is.

Example: [bold]kbench generate model.gguf --prompt "What is a roofline?" --temperature 0[/bold]
"""

# Sequences that several prompts are given: each has a cache of the whole context.
_MOST_AT_ONCE = 16

# A prompt file beyond this is no prompt: a million tokens are some 4 MB.
_MAX_PROMPT_BYTES = 16 << 20


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("generate", help=_HELP)
    def _generate(
        model: opt.Model,
        prompt: Annotated[
            list[str] | None, typer.Option("--prompt", "-p", help="The prompt; several are answered at once.")
        ] = None,
        file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from here (-: stdin).")] = None,
        system: Annotated[str | None, typer.Option(help="A system message, for the chat template.")] = None,
        raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text.")] = False,
        rules: opt.Rules = None,
        trust: opt.Trust = None,
        alias: opt.Alias = None,
        implementation: opt.Implementation = "auto",
        block: opt.Block = None,
        max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=0, help="Tokens at most.")] = 128,
        stop: Annotated[list[str] | None, typer.Option(help="A text that ends the answer; repeatable.")] = None,
        ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end (for measuring).")] = False,
        temperature: opt.Temperature = 0.8,
        top_k: opt.TopK = 40,
        top_p: opt.TopP = 0.95,
        min_p: opt.MinP = 0.05,
        penalty: opt.Penalty = 1.0,
        seed: opt.Seed = None,
        context: opt.Context = None,
        overflow: opt.Overflow = "stop",
        kv: opt.Kv = "f16",
        chunk: opt.Chunk = None,
        threads: opt.Threads = None,
        prefill_threads: opt.PrefillThreads = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, not streamed.")] = False,
    ) -> None:
        from kbench.engine import Generation, generate, generate_batch, prompt_ids

        if raw and system:
            raise UserError("--system with --raw", accepted="one of them", todo="write it into the prompt")
        texts = _prompts(prompt, file)
        params = opt.sampling(temperature, top_k, top_p, min_p, penalty, seed)
        session = opt.load_session(
            model,
            rules,
            implementation,
            context,
            kv,
            threads,
            prefill_threads,
            block,
            trust,
            alias,
            overflow,
            min(len(texts), _MOST_AT_ONCE),
            chunk,
        )
        print(opt.load_line(session), *opt.rounding_lines(session), sep="\n", file=sys.stderr)

        def ids_of(text: str) -> list[int]:
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": text})
            return prompt_ids(session, text if raw or session.template is None else messages)

        if len(texts) > 1:
            prompts = [ids_of(text) for text in texts]
            done = None if as_json else _print_answer
            answers: list[Generation] = []
            try:
                generate_batch(
                    session, prompts, params, max_tokens, stop=stop or (), ignore_eos=ignore_eos, done=done,
                    results=answers,
                )  # fmt: skip
            except KeyboardInterrupt:
                _print_interrupted(answers, done)
                _print_batch(session, texts, answers, model, as_json)
                raise typer.Exit(130) from None
            _print_batch(session, texts, answers, model, as_json)
            return
        ids = ids_of(texts[0])
        result = Generation()
        seconds: list[float] = []
        answer = generate(session, ids, params, max_tokens, stop=stop or (), ignore_eos=ignore_eos, result=result)
        try:
            for token in answer:
                seconds.append(token.seconds)
                if not as_json:
                    print(shown(token.text) if sys.stdout.isatty() else token.text, end="", flush=True)
        except KeyboardInterrupt:
            result.stop = "interrupt"
        if as_json:
            print_json("generate", 1, _fields(model, session, result, seconds))
        else:
            print()
            print(opt.speed_line(result), *opt.device_lines(session), sep="\n", file=sys.stderr)
        if result.stop == "interrupt":
            raise typer.Exit(130)  # 128 + SIGINT, as shells have it


def _fields(model: str, session: Session, result: Generation, seconds: list[float]) -> dict[str, Any]:
    """For ``--json``; ``seconds`` are those of each token."""
    report = session.report
    return {
        "model": {"name": session.descriptor.name, "quant": session.descriptor.quant, "path": model},
        "text": result.text,
        "token_ids": result.ids,
        "stop": result.stop,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "prefill_seconds": result.prefill_seconds,
        "prefill_tokens_per_s": result.prefill_tokens_per_s,
        "decode_tokens": result.decode_tokens,
        "decode_seconds": result.decode_seconds,
        "decode_tokens_per_s": result.decode_tokens_per_s,
        "token_seconds": seconds,
        "implementations": opt.implementations_used(session).split(", "),
        "threads": session.threads,
        "prefill_threads": session.prefill_threads,
        "kv": session.cache.kv,
        "context": session.cache.capacity,
        "file_bytes": report.file_bytes,
        "weight_bytes": report.weight_bytes,
        "kv_bytes": report.kv_bytes,
        "load_seconds": report.seconds,
        "traffic": session.traffic.plain(),
        "carriers": {ends: {"by": name, "why": why} for ends, (name, why) in report.carriers.items()},
        "stand_ins": dict(report.stand_ins),
        "rounded": opt.rounded_plain(session),
    }


def _print_answer(number: int, answer: Generation) -> None:
    """When it is complete: others may take long, or be interrupted."""
    print(f"[{number + 1}] {shown(answer.text) if sys.stdout.isatty() else answer.text}", flush=True)


def _print_interrupted(answers: Sequence[Generation], done: Callable[[int, Generation], None] | None) -> None:
    """What there is of answers that are not complete, and that they are not."""
    for number, answer in enumerate(answers):
        if answer.stop == "closed":
            answer.stop = "interrupt"
            if answer.text and done is not None:
                done(number, answer)


def _print_batch(
    session: Session, texts: Sequence[str], answers: Sequence[Generation], model: str, as_json: bool
) -> None:
    timings = session.timings
    if not as_json:
        speeds = f"decode {timings.decode_tokens} tokens, {timings.decode_tokens_per_s:.1f} tokens/s of all together"
        print(f"prefill {timings.prefill_tokens} tokens, {timings.prefill_tokens_per_s:.1f} tokens/s · {speeds}",
              *opt.device_lines(session), sep="\n", file=sys.stderr)  # fmt: skip
        return
    made = [
        {"prompt": text, "text": answer.text, "token_ids": answer.ids, "stop": answer.stop, "seed": answer.seed,
         "prompt_tokens": answer.prompt_tokens}
        for text, answer in zip(texts, answers, strict=False)  # none where it was interrupted before the first
    ]  # fmt: skip
    print_json(
        "generate-batch",
        1,
        {
            "model": {"name": session.descriptor.name, "quant": session.descriptor.quant, "path": model},
            "answers": made,
            "sequences": session.cache.shape.sequences,
            "prefill_tokens_per_s": timings.prefill_tokens_per_s,
            "decode_tokens": timings.decode_tokens,
            "decode_tokens_per_s": timings.decode_tokens_per_s,
            "kv": session.cache.kv,
            "context": session.cache.capacity,
            "kv_bytes": session.report.kv_bytes,
        },
    )


def _prompts(prompts: Sequence[str] | None, file: Path | None) -> list[str]:
    """The prompts' texts from exactly one of the two."""
    if bool(prompts) == (file is not None):
        raise UserError(
            "--prompt and --file" if prompts else "no prompt", accepted="one of --prompt TEXT and --file FILE"
        )
    return list(prompts) if prompts else [_read(file)]


def _read(file: Path | None) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.read(_MAX_PROMPT_BYTES)
        with open(str(file), encoding="utf-8") as source:
            text = source.read(_MAX_PROMPT_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"no UTF-8 at byte {error.start}"
        raise UserError(f"cannot be read: {why}", where=str(file), accepted="a UTF-8 text file") from None
    if len(text) > _MAX_PROMPT_BYTES:
        raise UserError("too long for a prompt", where=str(file), accepted=f"at most {_MAX_PROMPT_BYTES} characters")
    return text
