"""Fig. 4: FroSSL and Barlow Twins in the first epochs on ImageNet, top-1 and top-5 accuracy of the online classifier.

Both have the same recipe but for the objective. At the other sizes the runs are those of Table 2. With ten classes,
top-5 accuracy says little, and the library does not compute it; there is no panel then.
"""

from dataclasses import replace
from functools import partial
from statistics import fmean

from fullrank.recipes import RECIPES
from fullrank_papers.figures.figure import MplFigure, Rows, Verdicts, verdict
from fullrank_papers.figures.frossl import comparison as c
from fullrank_papers.figures.frossl import sizes
from fullrank_papers.figures.frossl.comparison import compare, online_accuracy, values_of
from fullrank_papers.figures.frossl.comparison import plan as plan
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.plot_style import COLORS, label_ends, plot_band, subplots

METHODS = ("frossl", "barlow_twins")
# The paper shows the first 30 of 100 epochs.
EPOCHS = 30
PAPER_LEAD = 0.122  # after the first epoch
# Final top-1 and top-5 accuracy in % on ImageNet after 100 epochs (Skean et al. 2023, Section 6.2).
PAPER_FINAL = {"frossl": (53.4, 77.7), "barlow_twins": (52.5, 77.5)}
SIMILAR = 0.02  # "similar performances", a margin of ours: the paper's differ by 0.9 points


def markdown(rows: Rows) -> str:
    """Return the table: epoch, top-1 and top-5 of both, the difference of their top-1; last the linear probe after
    training.
    """
    runs, lines = c.read_runs(rows), []
    for mark in c.marks_of(runs):
        top1, top5 = values_of(runs, online_accuracy(mark)), values_of(runs, online_accuracy(mark, "top5"))
        cells = [c.mean_and_deviation(values.get(name, {})) for values in (top1, top5) for name in METHODS]
        lines.append([f"{mark:g}", *cells, c.format_gap(compare(runs, top1, *METHODS))])
    finals = values_of(runs, c.probe_accuracy)
    if gap := compare(runs, finals, *METHODS):
        cells = [c.describe_accuracies(finals[name]) for name in METHODS]
        lines.append(["end, linear probe", *cells, "", "", c.format_gap(gap)])
    labels = [f"{CONTENDERS[name].label}, {top}, %" for top in ("top-1", "top-5") for name in METHODS]
    return c.markdown_table(["epoch", *labels, "top-1 difference"], lines)


def plot(rows: Rows) -> MplFigure:
    runs = {name: by_seed for name, by_seed in c.read_runs(rows).items() if name in METHODS}
    scores = {"top-1": online_accuracy, "top-5": partial(online_accuracy, field="top5")}
    curves = {top: c.curves(runs, score) for top, score in scores.items()}
    shown = [top for top, found in curves.items() if any(marks for marks, _ in found.values())] or ["top-1"]
    figure, (axes,) = subplots(1, len(shown), width=3.0 + 3.0 * len(shown), height=3.2)
    for axis, top in zip(axes, shown, strict=True):
        for name, curve in curves[top].items():
            plot_band(axis, *curve, color=COLORS[METHODS.index(name)], marker=".", label=CONTENDERS[name].label)
        axis.set(xlabel="epoch", ylabel=f"{top} accuracy of the online classifier, %")
    axes[0].set_title(c.describe_runs(runs))
    label_ends(*axes)
    return figure


def evaluate_claims(rows: Rows) -> Verdicts:
    runs = {name: by_seed for name, by_seed in c.read_runs(rows).items() if name in METHODS}
    finals = values_of(runs, c.probe_accuracy)
    first, last = (compare(runs, values, *METHODS) for values in (values_of(runs, online_accuracy(1.0)), finals))
    means = " and ".join(f"{100 * fmean(finals[name].values()):.1f}" for name in METHODS if name in finals)
    ahead = (first.format(" points", scale=100.0), first.exceeds(0.0)) if first else (c.NO_PAIR, None)
    similar: tuple[str, bool | None] = (c.NO_PAIR, None)
    if last:
        similar = f"{last.format(' points', scale=100.0)}; {means}", last.is_within(SIMILAR)
    within = f"linear probe, 95 % interval within ±{100 * SIMILAR:.0f} points (our margin)"
    top1 = " and ".join(f"{PAPER_FINAL[name][0]}" for name in METHODS)
    return {"first": verdict(*ahead, lead=100 * PAPER_LEAD), "end": verdict(*similar, within=within, top1=top1)}


IMAGENET_SIZE = c.Size(
    replace(RECIPES["imagenet"], name="imagenet-fig4"),  # of both, not each its own
    seeds=1,
    marks=tuple(float(epoch) for epoch in (*range(1, EPOCHS + 1), 50, 75, 100)),
    methods=METHODS,
    probes=("linear-imagenet",),
)
SIZES = {name: replace(sizes.SIZES[name], methods=METHODS) for name in ("smoke", "gpu", "gpu-lightly")}
SIZES |= {"paper": IMAGENET_SIZE}
