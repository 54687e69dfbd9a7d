"""Measuring: clock, warm-up, stopping rules, cold caches, statistics, the host and its ceilings."""

from .canary import Canary, canary
from .ceilings import KINDS, READ_BANDWIDTH, Ceiling, Ceilings, Probes, Reading, ceilings, thread_ladder
from .clock import Clock, calibrate, system_clock
from .cold import Rotation, is_cold, rotation_count
from .conditions import advice, conditions
from .cpu import Cache, Cpu, NumaNode
from .gpu import Gpu
from .guard import Guard
from .hopeless import Hopeless
from .host import Host, Memory, host, read_host
from .host_profile import HostProfile, export_host, read_host_profile
from .huge_pages import huge_page_bytes
from .link import LAUNCH, LINK, LINK_NAMES, REPLAY, SYNC, Link, LinkCosts, link_costs, unit_of
from .pairs import Pairs, measure_pairs
from .peak_memory import peak_resident_bytes
from .rank_sum import shift, shift_interval
from .sample import Measurement, Warmup, mean_seconds, measure
from .signed_rank import hodges_lehmann, hodges_lehmann_interval, signed_rank_p
from .statistics import (
    Interval,
    median,
    median_absolute_deviation,
    median_interval,
    quantile,
    quantile_interval,
    quartiles,
    relative_spread,
    samples_needed,
)
from .steps import MIN_MAGNITUDE, Level, Step, Steps, find_steps
from .stopping import FixedCount, RelativeNoise, StoppingRule, TimeBudget
from .trend import JudgedStep, MarkKind, Trend, judge_history
from .turns import Answers, Side, Turn, Turns, fit_at_once, refuse, serve
from .unpaired import ASSUMED_BETWEEN, between_runs, judge_unpaired
from .verdict import Judgement, Plan, Verdict, decide, decide_together, geometric_mean, judge, judge_mean

__all__ = [
    "ASSUMED_BETWEEN", "KINDS", "LAUNCH", "LINK", "LINK_NAMES", "MIN_MAGNITUDE", "READ_BANDWIDTH", "REPLAY", "SYNC",
    "Answers", "Cache", "Canary", "Ceiling", "Ceilings", "Clock", "Cpu", "FixedCount", "Gpu", "Guard", "Hopeless",
    "Host", "HostProfile", "Interval", "JudgedStep", "Judgement", "Level", "Link", "LinkCosts", "MarkKind",
    "Measurement", "Memory", "NumaNode", "Pairs", "Plan", "Probes", "Reading", "RelativeNoise", "Rotation", "Side",
    "Step", "Steps", "StoppingRule", "TimeBudget", "Trend", "Turn", "Turns", "Verdict", "Warmup", "advice",
    "between_runs", "calibrate", "canary", "ceilings", "conditions", "decide", "decide_together", "export_host",
    "find_steps", "fit_at_once", "geometric_mean", "hodges_lehmann", "hodges_lehmann_interval", "host",
    "huge_page_bytes", "is_cold", "judge", "judge_history", "judge_mean", "judge_unpaired", "link_costs",
    "mean_seconds", "measure", "measure_pairs", "median", "median_absolute_deviation", "median_interval",
    "peak_resident_bytes", "quantile", "quantile_interval", "quartiles", "read_host", "read_host_profile", "refuse",
    "relative_spread", "rotation_count", "samples_needed", "serve", "shift", "shift_interval", "signed_rank_p",
    "system_clock", "thread_ladder", "unit_of",
]  # fmt: skip
