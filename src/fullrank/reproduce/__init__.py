"""The figures of the papers. `reproduce(name)` computes a figure, draws it, and says which of the paper's claims are borne out."""

from fullrank.reproduce.figure import FIGURES, Campaign, Claim, Figure, Rows, load_figure, summarize_claims
from fullrank.reproduce.result import Result, load_committed, reproduce

__all__ = ["FIGURES", "Campaign", "Claim", "Figure", "Result", "Rows", "load_committed", "load_figure", "reproduce", "summarize_claims"]
