"""The command line: one file per verb, no logic of its own."""

from .main import main

__all__ = ["main"]
