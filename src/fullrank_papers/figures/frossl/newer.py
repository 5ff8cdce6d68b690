"""Newer objectives beside FroSSL and VICReg, with the search, the seeds and the decisions of `benchmark`.

They were not in its plan. The statistic of LeJEPA is that of each view, not of all views together.
"""

from dataclasses import replace

from fullrank_papers.figures.frossl import benchmark
from fullrank_papers.figures.frossl.benchmark import evaluate_claims as evaluate_claims
from fullrank_papers.figures.frossl.benchmark import markdown as markdown
from fullrank_papers.figures.frossl.benchmark import plan as plan
from fullrank_papers.figures.frossl.benchmark import plot as plot

METHODS = ("frossl", "vicreg", "lejepa", "visreg", "moco_v3", "rdmreg", "vibcreg")
SIZES = {name: replace(size, methods=METHODS) for name, size in benchmark.SIZES.items()}
