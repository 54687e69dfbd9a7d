"""Text to token ids and back, built from a GGUF file's metadata.

Two kinds of vocabulary: ``gpt2`` (merges of bytes, spelled with printable stand-ins) and ``llama`` (SentencePiece:
pieces with scores, ``▁`` for a space, ``<0xNN>`` tokens for bytes that no piece covers).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbench.core import CorruptFile, Unsupported

from .pretokenizer import pre_tokenizer

# GGUF's tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

# Control tokens that end a turn under whatever key a file has (or has not) for them.
_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|return|>", "<EOT>",
    "<｜end▁of▁sentence｜>", "</s>",
)  # fmt: skip

# The longest known are runs of some hundred spaces; finding a piece's merges is quadratic in its length.
MAX_TOKEN_CHARS = 4096

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def _byte_stand_ins() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next free one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Tokenizer:
    """Encodes and decodes with one model's vocabulary.

    Attributes:
        n_vocab: number of token ids.
        bos_id, eos_id: ids, or None where the file names none.
        stop_ids: every id that ends an answer (end of sequence, end of turn).
        add_bos, add_eos: whether ``encode`` puts them around a text unless told otherwise.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Reads the keys ``tokenizer.*`` of ``metadata``.

        Raises:
            Unsupported: a vocabulary or pre-tokenizer that this build does not know (named, with those it knows).
            CorruptFile: keys missing, of unequal lengths, or ids outside the vocabulary.
        """
        self._metadata = metadata
        tokens = self._list("tokens", str, required=True)
        longest = max(map(len, tokens))
        if longest > MAX_TOKEN_CHARS:
            raise CorruptFile(
                f"a token of {longest} characters", where="tokenizer.ggml.tokens", accepted=f"at most {MAX_TOKEN_CHARS}"
            )
        self.n_vocab = len(tokens)
        self._types = self._list("token_type", int) or [_NORMAL] * self.n_vocab
        if len(self._types) != self.n_vocab:
            raise CorruptFile(f"{len(self._types)} types for {self.n_vocab} tokens", where="tokenizer.ggml.token_type")
        self._texts: list[str] = tokens
        kind = str(metadata.get("tokenizer.ggml.model", ""))
        if kind == "gpt2":
            self._pieces = self._byte_level_pieces()
            self._backend, default_bos = self._build_bpe()
            self._prefix_space = False
        elif kind == "llama":
            self._pieces = self._sentencepiece_pieces()
            self._prefix_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
            self._backend, default_bos = self._build_sentencepiece(), True
        else:
            raise Unsupported(
                f"unknown vocabulary {kind!r}",
                where="tokenizer.ggml.model",
                accepted="gpt2 (byte-level BPE), llama (SPM)",
            )
        self._add_special_tokens()
        self.bos_id, self.eos_id = self._id("bos_token_id"), self._id("eos_token_id")
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)) and self.bos_id is not None
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and self.eos_id is not None
        ends = [self.eos_id, self._id("eot_token_id"), self._id("eom_token_id")]
        control = {text: i for i, text in enumerate(tokens) if self._types[i] in (_CONTROL, _USER_DEFINED)}
        ends += [control.get(text) for text in _END_OF_TURN]
        self.stop_ids = frozenset(i for i in ends if i is not None)

    # Metadata, checked: the file is untrusted.

    def _list(self, key: str, kind: type, required: bool = False) -> list[Any]:
        where = f"tokenizer.ggml.{key}"
        values = self._metadata.get(where)
        if values is None:
            if required:
                raise CorruptFile("missing: the file holds no vocabulary", where=where)
            return []
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise CorruptFile(f"found {type(values).__name__}", where=where, accepted=f"a list of {kind.__name__}")
        try:
            result = [v if isinstance(v, kind) else kind(v) for v in values]
        except (ValueError, OverflowError, TypeError) as error:
            raise CorruptFile(str(error)[:100], where=where, accepted=f"a list of {kind.__name__}") from None
        if required and not result:
            raise CorruptFile("an empty list", where=where)
        return result

    def _id(self, key: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < self.n_vocab:
            raise CorruptFile(f"id {value}", where=f"tokenizer.ggml.{key}", accepted=f"0..{self.n_vocab - 1}")
        return value

    # The bytes that each id stands for.

    def _byte_level_pieces(self) -> list[bytes]:
        table = _byte_stand_ins()
        pieces = []
        for text, kind in zip(self._texts, self._types, strict=True):
            if kind == _NORMAL and all(char in table for char in text):
                pieces.append(bytes(table[char] for char in text))
            else:
                pieces.append(text.encode("utf-8", "replace"))
        return pieces

    def _sentencepiece_pieces(self) -> list[bytes]:
        pieces = []
        for text, kind in zip(self._texts, self._types, strict=True):
            byte = _BYTE_PIECE.fullmatch(text) if kind == _BYTE else None
            pieces.append(bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode("utf-8", "replace"))
        return pieces

    # The backends of the `tokenizers` library.

    def _build_bpe(self) -> tuple[Any, bool]:
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        family = pre_tokenizer(str(self._metadata.get("tokenizer.ggml.pre", "default")))
        merges = []
        for merge in self._list("merges", str):
            # The first part has at least one character, and that may be a space in odd vocabularies.
            left, gap, right = merge[1:].partition(" ")
            if not gap or not right:
                raise CorruptFile(
                    f"{merge!r}", where="tokenizer.ggml.merges", accepted="two tokens with a space between"
                )
            merges.append((merge[0] + left, right))
        backend = Tokenizer(self._bpe_model(models, merges, ignore_merges=family.ignore_merges))
        if family.nfc:
            backend.normalizer = normalizers.NFC()
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in family.patterns]
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return backend, family.add_bos

    def _build_sentencepiece(self) -> Any:
        """Score-ordered merging as BPE: a merge ranks by the score of the piece that it makes."""
        from tokenizers import Tokenizer, models, normalizers

        scores = [float(s) for s in self._list("scores", float)]
        if len(scores) != self.n_vocab:
            raise CorruptFile(f"{len(scores)} scores for {self.n_vocab} tokens", where="tokenizer.ggml.scores")
        # Only normal pieces take part: text can then never spell a control token.
        ids = {t: i for i, t in enumerate(self._texts) if self._types[i] in (_NORMAL, _USER_DEFINED, _UNUSED)}
        ranked = []
        for text, i in ids.items():
            for cut in range(1, len(text)):
                left, right = text[:cut], text[cut:]
                if left in ids and right in ids:
                    ranked.append((-scores[i], ids[left], ids[right], left, right))
        ranked.sort()
        merges = [(left, right) for *_, left, right in ranked]
        unknown = self._id("unknown_token_id")
        backend = Tokenizer(
            self._bpe_model(
                models,
                merges,
                byte_fallback=True,
                fuse_unk=True,
                unk_token=self._texts[unknown] if unknown is not None else None,
            )
        )
        steps = [normalizers.Prepend(_SPACE)] if self._prefix_space else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        return backend

    def _bpe_model(self, models: Any, merges: list[tuple[str, str]], **options: Any) -> Any:
        vocabulary = {text: i for i, text in enumerate(self._texts)}
        try:
            return models.BPE(vocab=vocabulary, merges=merges, **options)
        except Exception as error:  # the library raises plain Exception for a merge whose parts are no tokens
            raise CorruptFile(f"vocabulary and merges do not fit: {error}", where="tokenizer.ggml.merges") from None

    def _add_special_tokens(self) -> None:
        from tokenizers import AddedToken

        special = [t for t, kind in zip(self._texts, self._types, strict=True) if kind in (_CONTROL, _UNKNOWN) and t]
        defined = [t for t, kind in zip(self._texts, self._types, strict=True) if kind == _USER_DEFINED and t]
        self._backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
        self._backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])

    # What callers use.

    def encode(self, text: str, *, special: bool | None = None, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            special: add the begin and end tokens that the file asks for (default) or none (False).
            parse_special: read ``<|im_end|>`` and the like as control tokens: for chat templates only. Text from a
                user must never be able to end its own turn.
        """
        self._backend.encode_special_tokens = not parse_special
        # Lone surrogates (half an emoji from a broken pipe) are no text: replace them as decoders do.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._backend.encode(clean, add_special_tokens=False).ids if clean else []
        if special is None or special:
            if self.add_bos and self.bos_id is not None and not (ids and ids[0] == self.bos_id and parse_special):
                ids = [self.bos_id, *ids]
            if self.add_eos and self.eos_id is not None:
                ids = [*ids, self.eos_id]
        return ids

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it, e.g. ``Ġthe`` or ``<|im_end|>``."""
        return self._texts[token_id]

    def is_special(self, token_id: int) -> bool:
        return self._types[token_id] in (_CONTROL, _UNKNOWN)

    def piece(self, token_id: int) -> bytes:
        """The bytes that the id stands for; they need not be whole UTF-8 characters."""
        return self._pieces[token_id]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        stream = TextStream(self, skip_special=skip_special)
        text = "".join([*(stream.push(i) for i in ids), stream.flush()])
        return text[1:] if self._prefix_space and text.startswith(" ") else text


class TextStream:
    """Turns ids into text as they come, holding back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that is complete with this id; may be empty."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.piece(token_id))

    def flush(self) -> str:
        """What was held back, as U+FFFD where it never became a character."""
        return self._decoder.decode(b"", final=True)
