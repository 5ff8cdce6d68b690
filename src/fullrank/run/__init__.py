"""The files of a run: its directory, its log of metrics, and the environment that it ran in."""

from fullrank.run.directory import Run, create, read_json, resume_command, run_lock, write_json
from fullrank.run.environment import describe
from fullrank.run.metrics_writer import Log

__all__ = ["Log", "Run", "create", "describe", "read_json", "resume_command", "run_lock", "write_json"]
