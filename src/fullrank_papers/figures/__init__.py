"""The figures of the papers. `reproduce(name)` computes a figure, draws it, and says which of the paper's claims are
reproduced; `run_campaign(name)` does the same for a table or figure that needs many runs.
"""

from fullrank_papers.figures.figure import FIGURES as FIGURES
from fullrank_papers.figures.figure import Claim as Claim
from fullrank_papers.figures.figure import Rows as Rows
from fullrank_papers.figures.figure import load_figure as load_figure
from fullrank_papers.figures.figure import summarize_claims as summarize_claims
from fullrank_papers.figures.result import CampaignRuns as CampaignRuns
from fullrank_papers.figures.result import Result as Result
from fullrank_papers.figures.result import load_committed as load_committed
from fullrank_papers.figures.result import reproduce as reproduce
from fullrank_papers.figures.result import run_campaign as run_campaign
