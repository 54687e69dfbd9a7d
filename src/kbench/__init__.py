"""kbench: measure, place and run mixture-of-experts language models on a CPU and a GPU."""

__version__ = "0.1.0"
