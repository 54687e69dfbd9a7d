"""How each tokenizer family cuts text into words before it merges bytes within them.

GGUF names the family in ``tokenizer.ggml.pre``; the expressions themselves are part of the trained tokenizer, so they
have to match it exactly. Each is applied to the pieces that the one before left: matches and the gaps between them
become pieces of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbench.core import Unsupported, did_you_mean

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

# GPT-4's words: a letter run takes one leading symbol or space, newlines stick to what is before them, and numbers
# come in groups of {digits}.
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CJK = r"[一-龥ࠀ-一가-퟿]+"

# DeepSeek-LLM: cased letters, punctuation of Latin and Chinese typography, CJK and Hangul runs, numbers.
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)

_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A family: its expressions, and what the trained tokenizer does beyond them.

    ``ignore_merges``: a word that is a token as a whole is taken whole, whatever the merges say.
    ``nfc``: text is brought to Unicode normal form C first. ``add_bos``: the default where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "llama-bpe": PreTokenizer((_GPT4.format(digits="{1,3}"),), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((_GPT4.format(digits=""),), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_GPT4.format(digits=""),)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
    # What llama.cpp reads a file with that was converted before the key existed.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
PRE_TOKENIZERS["llama3"] = PRE_TOKENIZERS["llama-v3"] = PRE_TOKENIZERS["llama-bpe"]


def pre_tokenizer(name: str) -> PreTokenizer:
    """The family called ``name``.

    Raises:
        Unsupported: no such family. Guessing one would silently give the model words that it never saw.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise Unsupported(
            f"unknown pre-tokenizer {name!r}",
            where="tokenizer.ggml.pre",
            accepted=", ".join(PRE_TOKENIZERS),
            todo=did_you_mean(name, PRE_TOKENIZERS),
        ) from None
