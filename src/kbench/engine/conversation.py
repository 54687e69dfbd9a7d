"""A chat: messages so far, rendered by the model's template, the cache reused from turn to turn."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

from kbench.core import UserError

from .generate import Generation, Token, generate
from .sampling import GREEDY, SamplingParams
from .session import Session
from .tokenizer import Tokenizer


def prompt_ids(session: Session, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a text as it is, or of messages through the model's chat template.

    Raises:
        UserError: messages for a model without a template, or that its template refuses.
    """
    if isinstance(prompt, str):
        return session.tokenizer.encode(prompt)
    if session.template is None:
        raise UserError("the model has no chat template", accepted="a prompt as plain text")
    fence = _Fence(session.tokenizer, prompt)
    return fence.encode(session.template.render(fence.messages))


class _Fence:
    """Keeps a control token's text in what a user or a document says, such as ``<|im_end|>``, from being one.

    While the template renders, a private-use character stands for each such text; it is then encoded as plain text.
    """

    def __init__(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> None:
        said = "".join(str(message.get("content", "")) for message in messages)
        spelled = (tokenizer.token_text(i) for i in range(tokenizer.n_vocab) if tokenizer.is_special(i))
        # The longest first: one may hold another.
        found = sorted({text for text in spelled if text and text in said}, key=len, reverse=True)
        free = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in said)
        self._tokenizer = tokenizer
        self._texts = dict(zip(free, found, strict=False))
        self.messages = [{**message, "content": self._hidden(message.get("content", ""))} for message in messages]

    def _hidden(self, content: str) -> str:
        for mark, text in self._texts.items():
            content = content.replace(text, mark)
        return content

    def encode(self, text: str) -> list[int]:
        """Token ids of the rendered ``text``."""
        if not self._texts:
            return self._tokenizer.encode(text, parse_special=True)
        first, *parts = re.split(f"([{''.join(self._texts)}])", text)
        ids = self._tokenizer.encode(first, parse_special=True)
        for part in parts:
            plain = self._texts.get(part)
            ids += self._tokenizer.encode(plain or part, special=False, parse_special=plain is None)
        return ids


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
