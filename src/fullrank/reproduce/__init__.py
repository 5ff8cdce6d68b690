"""The figures of the papers, each one command: `reproduce(name)` computes it, draws it, and says which of the paper's claims hold."""

from fullrank.reproduce.catalogue import FIGURES, figure_named
from fullrank.reproduce.figure import Claim, Figure, Rows, verdict
from fullrank.reproduce.result import Result, committed, reproduce

__all__ = ["FIGURES", "Claim", "Figure", "Result", "Rows", "committed", "figure_named", "reproduce", "verdict"]
