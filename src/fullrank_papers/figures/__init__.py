"""The figures of the papers. `reproduce(name)` computes a figure, draws it, and says which of the paper's claims are
reproduced.

`run_campaign(name)` does the same for a table or figure that needs many runs.
"""

from typing import TYPE_CHECKING

from fullrank.lazy import lazy_attributes
from fullrank_papers.figures.figure import FIGURES, Campaign, Claim, Figure, Rows, load_figure, summarize_claims
from fullrank_papers.figures.result import Result, load_committed, reproduce

if TYPE_CHECKING:
    from fullrank_papers.figures.campaign import collect_campaign, run_campaign

__all__ = [
    "FIGURES",
    "Campaign",
    "Claim",
    "Figure",
    "Result",
    "Rows",
    "collect_campaign",
    "load_committed",
    "load_figure",
    "reproduce",
    "run_campaign",
    "summarize_claims",
]

__getattr__ = lazy_attributes(__name__, {"collect_campaign": "campaign", "run_campaign": "campaign"})
