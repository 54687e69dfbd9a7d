"""Measuring: clock, warm-up, stopping rules, cold caches, statistics, the host and its ceilings."""

from .clock import Clock, calibrate, system_clock
from .cold import Rotation, is_cold, rotation_count
from .sample import Measurement, Warmup, measure
from .statistics import Interval, median, median_absolute_deviation, median_interval, quartiles, relative_spread
from .stopping import FixedCount, RelativeNoise, StoppingRule, TimeBudget

__all__ = [
    "Clock", "FixedCount", "Interval", "Measurement", "RelativeNoise", "Rotation", "StoppingRule", "TimeBudget",
    "Warmup", "calibrate", "is_cold", "measure", "median", "median_absolute_deviation", "median_interval",
    "quartiles", "relative_spread", "rotation_count", "system_clock",
]  # fmt: skip
