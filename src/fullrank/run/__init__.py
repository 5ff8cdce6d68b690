"""A run on disk and while it goes: directory, log, progress, spectrum watch, signals."""

from fullrank.run.data import TrainingData, prepare
from fullrank.run.directory import Run, create, locked, read_json, write_json
from fullrank.run.environment import describe
from fullrank.run.interrupt import stop_on_signals
from fullrank.run.log import Log
from fullrank.run.progress import Bar, Waiting
from fullrank.run.recorder import Recorder

__all__ = [
    "Bar",
    "Log",
    "Recorder",
    "Run",
    "TrainingData",
    "Waiting",
    "create",
    "describe",
    "locked",
    "prepare",
    "read_json",
    "stop_on_signals",
    "write_json",
]
