"""A run: `pretrain`, and the files of its directory with their log, spectra and environment."""

from fullrank.files import read_json, write_json
from fullrank.run.directory import Run
from fullrank.run.metrics import Metrics
from fullrank.run.spectrum_history import SpectrumHistory

__all__ = ["Metrics", "Run", "SpectrumHistory", "read_json", "write_json"]
