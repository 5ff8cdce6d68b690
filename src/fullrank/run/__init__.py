"""A run: `pretrain`, and the files of its directory with their log, spectra and environment."""

from fullrank.files import read_json, write_json
from fullrank.run.directory import Run, create_run_directory, resume_command, run_lock
from fullrank.run.environment import describe_environment
from fullrank.run.metrics import Metrics, MetricsWriter
from fullrank.run.spectrum_history import SpectrumHistory

__all__ = [
    "Metrics",
    "MetricsWriter",
    "Run",
    "SpectrumHistory",
    "create_run_directory",
    "describe_environment",
    "read_json",
    "resume_command",
    "run_lock",
    "write_json",
]
