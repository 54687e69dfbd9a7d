"""A chat: messages so far, rendered by the model's template, the cache reused from turn to turn."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from kbench.core import UserError

from .generate import Generation, Token, generate
from .sampling import GREEDY, SamplingParams
from .session import Session


def prompt_ids(session: Session, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a text as it is, or of messages through the model's chat template.

    Raises:
        UserError: messages for a model without a template, or that its template refuses.
    """
    if isinstance(prompt, str):
        return session.tokenizer.encode(prompt)
    if session.template is None:
        raise UserError("the model has no chat template", accepted="a prompt as plain text")
    return session.tokenizer.encode(session.template.render(prompt), parse_special=True)


class Conversation:
    """Turns of user and assistant.

    Attributes:
        messages: what was said, the system message first where there is one.
        last: the last answer's counts, times and tokens.
    """

    def __init__(
        self,
        session: Session,
        sampling: SamplingParams = GREEDY,
        *,
        system: str | None = None,
        max_tokens: int = 512,
    ) -> None:
        self.session, self.sampling, self.max_tokens = session, sampling, max_tokens
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._system)
        self.last = Generation()

    def say(self, text: str) -> Generator[Token, None, None]:
        """The answer to ``text``, token by token. However it ends, what was made of it is remembered; when the prompt
        does not fit or the template refuses it, nothing is."""
        self.messages.append({"role": "user", "content": text})
        self.last = Generation()
        try:
            ids = prompt_ids(self.session, self.messages)
            yield from generate(self.session, ids, self.sampling, self.max_tokens, reuse=True, result=self.last)
        finally:
            if self.last.ids:
                self.messages.append({"role": "assistant", "content": self.last.text})
            else:
                self.messages.pop()

    def reset(self) -> None:
        """Forgets everything but the system message; the cache keeps what the next turn can reuse."""
        self.messages = list(self._system)
