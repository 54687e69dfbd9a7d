"""Tuning: plan, measure, price, place exactly, write rules, prove them by a run.

``cost_model`` says what a call costs, ``column`` and ``layout`` what can be chosen, ``placement`` chooses.
"""

from .beside import beside
from .budget import parse_vram
from .ceilings import measured_roof
from .cost_model import CostModel, Roof
from .elsewhere import tune_elsewhere
from .engine_turns import EngineTurns
from .forms import parse_chunks, parse_kv
from .plan import Plan, cells, make_plan
from .predict import ModelStep, Steps
from .profile import DEFAULT_GPU, GpuProfile, load_profile, profile_names
from .proxy import proxy
from .report import TuneReport
from .request import (
    DEFAULT_CHUNK,
    DEFAULT_CONTEXT,
    DEFAULT_MODEL,
    OBJECTIVES,
    SearchRequest,
    TuneRequest,
    Workload,
    workload,
)
from .search_space import SearchSpace, search_space, search_space_of
from .tune import replay, tune

__all__ = [
    "DEFAULT_CHUNK", "DEFAULT_CONTEXT", "DEFAULT_GPU", "DEFAULT_MODEL", "OBJECTIVES", "CostModel", "EngineTurns",
    "GpuProfile", "ModelStep", "Plan", "Roof", "SearchRequest", "SearchSpace", "Steps", "TuneReport", "TuneRequest",
    "Workload", "beside", "cells", "load_profile", "make_plan", "measured_roof", "parse_chunks", "parse_kv",
    "parse_vram", "profile_names", "proxy", "replay", "search_space", "search_space_of", "tune", "tune_elsewhere",
    "workload",
]  # fmt: skip
