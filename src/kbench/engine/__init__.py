"""Runs models: loads weights, executes lowered calls, keeps the cache, makes tokens."""

from .batch import generate_batch
from .capture import planned_uncaptured
from .chat_template import ChatTemplate
from .conversation import Conversation, prompt_ids
from .devices import DeviceMap, parse_alias
from .generate import Generation, Token, generate
from .injected_operator import InjectedOperator
from .kv_cache import OVERFLOWS, CacheShape, KvCache
from .load_options import DEFAULT_CHUNK, LoadOptions
from .load_report import LoadReport
from .loader import load_model, serve_host
from .original_module import OriginalModule
from .peers import BEGINNING, ENGINES, check_engine, engine_turns, kbench_sessions, parse_engine
from .pipeline import HostGroup, join_hosts
from .room import DEFAULT_CONTEXT, planned_needs
from .sampling import GREEDY, Sampler, SamplingParams, softmax
from .session import Session
from .tensor_loader import TensorLoader
from .timings import Timings
from .tokenizer import TextStream, Tokenizer
from .traffic import CACHE, VALUES, WEIGHTS, Moved, Traffic

__all__ = [
    "BEGINNING",
    "CACHE",
    "DEFAULT_CHUNK",
    "DEFAULT_CONTEXT",
    "ENGINES",
    "GREEDY",
    "OVERFLOWS",
    "VALUES",
    "WEIGHTS",
    "CacheShape",
    "ChatTemplate",
    "Conversation",
    "DeviceMap",
    "Generation",
    "HostGroup",
    "InjectedOperator",
    "KvCache",
    "LoadOptions",
    "LoadReport",
    "Moved",
    "OriginalModule",
    "Sampler",
    "SamplingParams",
    "Session",
    "TensorLoader",
    "TextStream",
    "Timings",
    "Token",
    "Tokenizer",
    "Traffic",
    "check_engine",
    "engine_turns",
    "generate",
    "generate_batch",
    "join_hosts",
    "kbench_sessions",
    "load_model",
    "parse_alias",
    "parse_engine",
    "planned_needs",
    "planned_uncaptured",
    "prompt_ids",
    "serve_host",
    "softmax",
]  # fmt: skip
