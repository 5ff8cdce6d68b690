"""Fig. 12: the accuracy of DirectCLR as a function of d0, the number of dimensions that the loss sees.

SimCLR on a sub-vector is DirectCLR as the paper defines it; with d0 = D_b it is SimCLR without a projector. The paper's
tuned d0 is 360 of 2048, which is 22 of the 128 dimensions at size small. The claims are about this d0, not about the
best of ours. That DirectCLR is better than no projector is a claim of Table 1; here it is only a comparison.
"""

from statistics import fmean

from fullrank_papers.figures.directclr.comparison import accuracies, ranks
from fullrank_papers.figures.directclr.study import SIZES as SIZES
from fullrank_papers.figures.directclr.study import Size, run_study, with_d0, with_projector
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts
from fullrank_papers.figures.numerics import check_higher
from fullrank_papers.plot_style import subplots


def compute(size: Size, *, data: str | None, seed: int) -> Rows:
    tuned = size.recipe.projector.d0
    recipes = {str(d0): with_d0(size.recipe, d0) for d0 in sorted({*size.sweep, tuned})}
    recipes["all"] = with_projector(size.recipe, "none")
    return {"tuned": str(tuned), "runs": run_study(size, recipes, data=data, seed=seed)}


def plot(rows: Rows) -> MplFigure:
    figure, (axes,) = subplots(1, 2, width=9.0, height=3.0, sharex=True)
    D_b = rows["runs"]["all"][0]["representation"]["D"]
    places = [D_b if d0 == "all" else int(d0) for d0 in rows["runs"]]
    labels = ("accuracy of a linear probe of r, %", "effective rank of r")
    for axis, numbers, scale, label in zip(axes, (accuracies, ranks), (100, 1), labels, strict=True):
        values = [[scale * value for value in numbers(runs)] for runs in rows["runs"].values()]
        axis.plot(places, values, "o", color="C0", markersize=4, alpha=0.6)
        axis.plot(places, [fmean(seeds) for seeds in values], color="C0")
        axis.axvline(int(rows["tuned"]), color="gray", linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(places, [str(place) for place in places], minor=False)
        axis.set(xlabel=f"d0, of {D_b} dimensions (dotted: the paper's share)", ylabel=label)
    axes[0].set_title("Dots: seeds, line: their mean")
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    runs, tuned = rows["runs"], rows["tuned"]
    fewest = min((d0 for d0 in runs if d0 != "all"), key=int)
    best = accuracies(runs[tuned])
    return {
        "fewer": check_higher(best, accuracies(runs[fewest]), fewest=fewest),
        "all": check_higher(best, accuracies(runs["all"])),
        "rank": check_higher(ranks(runs[tuned]), ranks(runs["all"]), unit="", scale=1.0),
    }
