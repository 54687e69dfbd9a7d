"""Runs models: loads weights, executes lowered calls, keeps the cache, makes tokens."""

from .chat_template import ChatTemplate
from .kv_cache import KV_TYPES, KvCache
from .sampling import GREEDY, Sampler, SamplingParams, softmax
from .tokenizer import TextStream, Tokenizer

__all__ = [
    "GREEDY", "KV_TYPES", "ChatTemplate", "KvCache", "Sampler", "SamplingParams", "TextStream", "Tokenizer",
    "softmax",
]  # fmt: skip
