"""Measuring: clock, warm-up, stopping rules, cold caches, statistics, the host and its ceilings."""

from .ceilings import KINDS, READ_BANDWIDTH, Ceiling, Ceilings, Probes, Reading, ceilings, thread_ladder
from .clock import Clock, calibrate, system_clock
from .cold import Rotation, is_cold, rotation_count
from .cpu import Cache, Cpu, NumaNode
from .gpu import Gpu
from .guard import Guard
from .host import Host, Memory, host, read_host
from .host_profile import HostProfile, export_host, read_host_profile
from .pairs import Pairs, measure_pairs
from .sample import Measurement, Warmup, mean_seconds, measure
from .signed_rank import hodges_lehmann, hodges_lehmann_interval, signed_rank_p
from .statistics import Interval, median, median_absolute_deviation, median_interval, quartiles, relative_spread
from .stopping import FixedCount, RelativeNoise, StoppingRule, TimeBudget
from .turns import Answers, Side, Turn, Turns, fit_at_once, refuse, serve
from .verdict import Judgement, Plan, Verdict, decide, decide_together, geometric_mean, judge, judge_mean

__all__ = [
    "KINDS", "READ_BANDWIDTH", "Answers", "Cache", "Ceiling", "Ceilings", "Clock", "Cpu", "FixedCount", "Gpu",
    "Guard", "Host", "HostProfile", "Interval", "Judgement", "Measurement", "Memory", "NumaNode", "Pairs", "Plan",
    "Probes", "Reading", "RelativeNoise", "Rotation", "Side", "StoppingRule", "TimeBudget", "Turn", "Turns",
    "Verdict", "Warmup", "calibrate", "ceilings", "decide", "decide_together", "export_host", "fit_at_once",
    "geometric_mean", "hodges_lehmann", "hodges_lehmann_interval", "host", "is_cold", "judge", "judge_mean",
    "mean_seconds", "measure", "measure_pairs", "median", "median_absolute_deviation", "median_interval", "quartiles",
    "read_host", "read_host_profile", "refuse", "relative_spread", "rotation_count", "serve", "signed_rank_p",
    "system_clock", "thread_ladder",
]  # fmt: skip
