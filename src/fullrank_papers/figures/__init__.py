"""The figures of the papers. `reproduce(name)` computes a figure, draws it, and says which of the paper's claims are
reproduced; `CampaignRuns(name).run()` does the same for a table or figure that needs many runs.
"""

from fullrank_papers.figures.figure import FIGURES, Claim, Rows, load_figure, summarize_claims
from fullrank_papers.figures.result import CampaignRuns, Result, load_committed, reproduce

__all__ = [
    "FIGURES", "CampaignRuns", "Claim", "Result", "Rows", "load_committed", "load_figure", "reproduce",
    "summarize_claims",
]  # fmt: skip
