"""`kbench chat`: a conversation in the terminal, or through a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from kbench.core import UserError

from . import run_options as opt
from .output import print_json, shown

if TYPE_CHECKING:
    from kbench.engine import Conversation, Generation

_HELP = """Talk with a GGUF model. What was said stays in the cache: only new words are read.

/help lists the commands; Ctrl-C stops an answer. Lines may be piped in, one message each.

Example: [bold]kbench chat model.gguf --system "Answer in one sentence."[/bold]
"""

_COMMANDS = "/reset  forget the conversation\n/stats  speeds of the last answer\n/help   this list\n/exit   leave"


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("chat", help=_HELP)
    def _chat(
        model: opt.Model,
        system: Annotated[str | None, typer.Option(help="A system message.")] = None,
        rules: opt.Rules = None,
        trust: opt.Trust = None,
        alias: opt.Alias = None,
        implementation: opt.Implementation = "auto",
        block: opt.Block = None,
        max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1, help="Tokens of an answer.")] = 512,
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
        as_json: Annotated[
            bool, typer.Option("--json", help="The conversation as one JSON object at the end.")
        ] = False,
    ) -> None:
        from kbench.engine import Conversation

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
            chunk=chunk,
        )
        if session.template is None:
            raise UserError(
                "the model has no chat template", where=model, todo="use kbench generate --raw, or an instruct model"
            )
        print(opt.load_line(session), *opt.rounding_lines(session), sep="\n", file=sys.stderr)
        conversation = Conversation(session, params, system=system, max_tokens=max_tokens)
        _talk(conversation, sys.stderr if as_json else sys.stdout)
        if as_json:
            print_json(
                "chat",
                1,
                {
                    "model": {"name": session.descriptor.name, "quant": session.descriptor.quant, "path": model},
                    "messages": conversation.messages,
                    "prefill_tokens": session.timings.prefill_tokens,
                    "prefill_tokens_per_s": session.timings.prefill_tokens_per_s,
                    "decode_tokens": session.timings.decode_tokens,
                    "decode_tokens_per_s": session.timings.decode_tokens_per_s,
                },
            )


def _talk(conversation: Conversation, out: TextIO) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401 (line editing and history for input())

        print("/help for commands", file=sys.stderr)
    last: Generation | None = None
    while True:
        line = _read_line(interactive)
        if line is None or line in ("/exit", "/quit"):
            return
        if line == "/reset":
            conversation.reset()
            print("forgotten", file=sys.stderr)
        elif line == "/stats":
            lines = [opt.speed_line(last), *opt.device_lines(conversation.session)] if last else ["no answer yet"]
            print(*lines, sep="\n", file=sys.stderr)
        elif line.startswith("/"):
            print(_COMMANDS if line == "/help" else f"unknown command {line}\n{_COMMANDS}", file=sys.stderr)
        elif line:
            last = _answer(conversation, line, out)


def _read_line(interactive: bool) -> str | None:
    """The next message, or None at the end."""
    while True:
        try:
            if interactive:
                return input("> ").strip()
            line = sys.stdin.readline()
            return line.strip() if line else None
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            # Clears the line, as shells do.
            print("\n/exit leaves", file=sys.stderr)


def _answer(conversation: Conversation, text: str, out: TextIO) -> Generation:
    """Streams one answer; Ctrl-C stops it and what was said of it stays said."""
    try:
        for token in conversation.say(text):
            print(shown(token.text) if out.isatty() else token.text, end="", flush=True, file=out)
    except KeyboardInterrupt:
        print(" [stopped]", end="", file=sys.stderr)
    except UserError as error:
        print(f"{shown(error.message)} (/reset forgets the conversation)", file=sys.stderr)
    print(flush=True, file=out)
    return conversation.last
