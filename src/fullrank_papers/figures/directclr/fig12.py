"""Fig. 12: the accuracy of DirectCLR as a function of d0, the number of dimensions that the loss sees.

SimCLR on a sub-vector is DirectCLR as the paper defines it; with d0 = D_b it is SimCLR without a projector. The paper's
tuned d0 is 360 of 2048, which is 22 of the 128 dimensions at size small. The claims are about this d0, not about the
best of ours.
"""

import statistics

from fullrank.report.plot_style import subplots
from fullrank_papers.figures.directclr.study import (
    IMAGES,
    SIZES,
    Size,
    run_study,
    values_per_seed,
    with_d0,
    with_projector,
)
from fullrank_papers.figures.figure import ClaimResult, Figure, MplFigure, Rows
from fullrank_papers.figures.seeds import check_higher


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    tuned = size.recipe.projector.d0
    recipes = {str(d0): with_d0(size.recipe, d0) for d0 in sorted({*size.sweep, tuned})} | {
        "all": with_projector(size.recipe, "none")
    }
    return {"tuned": str(tuned), "runs": run_study(size, recipes, data=data, seed=seed)}


def plot(rows: Rows) -> MplFigure:
    figure, ((left, right),) = subplots(1, 2, width=9.0, height=3.0, sharex=True)
    D_b = rows["runs"]["all"][0]["representation"]["D"]
    places = [D_b if d0 == "all" else int(d0) for d0 in rows["runs"]]
    for axis, keys, scale in ((left, ("accuracy", "whole"), 100), (right, ("representation", "effective_rank"), 1)):
        values = [[scale * value for value in values_per_seed(runs, *keys)] for runs in rows["runs"].values()]
        axis.plot(places, values, "o", color="C0", markersize=4, alpha=0.6)
        axis.plot(places, [statistics.fmean(seeds) for seeds in values], color="C0")
        axis.axvline(int(rows["tuned"]), color="gray", linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(places, [str(place) for place in places], minor=False)
        axis.set_xlabel(f"d0, of {D_b} dimensions (dotted: the paper's share)")
    left.set_ylabel("accuracy of a linear probe of r, %")
    left.set_title("Dots: seeds, line: their mean")
    right.set_ylabel("effective rank of r")
    return figure


def evaluate_claims(rows: Rows) -> dict[str, ClaimResult]:
    runs, tuned = rows["runs"], rows["tuned"]
    fewest = min((d0 for d0 in runs if d0 != "all"), key=int)
    accuracy = {d0: values_per_seed(runs[d0], "accuracy", "whole") for d0 in runs}
    rank = {d0: values_per_seed(runs[d0], "representation", "effective_rank") for d0 in runs}
    fewer = f"accuracy drops with too few dimensions: d0 = {tuned} is better than d0 = {fewest}"
    return {
        fewer: check_higher(accuracy[tuned], accuracy[fewest]),
        f"accuracy drops with all dimensions: d0 = {tuned} is better than all": check_higher(
            accuracy[tuned], accuracy["all"]
        ),
        f"r collapses with all dimensions: its effective rank is higher with d0 = {tuned}": check_higher(
            rank[tuned], rank["all"], unit="", scale=1.0
        ),
    }


FIGURE = Figure(
    title="Fig. 12 of Jing et al. 2022, DirectCLR",
    claim="Accuracy has a maximum in d0: too few dimensions give too little gradient; with all of them r collapses.",
    sizes=SIZES,
    compute=compute,
    plot=plot,
    evaluate_claims=evaluate_claims,
    images=IMAGES,
)
