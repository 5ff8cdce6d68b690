"""Every figure at its smoke size: its claims, a drawing, and rows that refute a claim."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import product

import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers.figures import FIGURES, load_committed, load_figure, trained
from fullrank_papers.figures.directclr import study
from fullrank_papers.figures.dynamics import fig4, remark3
from fullrank_papers.figures.figure import SEVERITIES, evaluate, is_campaign

TIMED = {"frossl/cost": ("corinfomax", "ivne"), "dynamics/fig4": ("time_11", "time_12", "cheaper")}
REFUTED = {
    "frossl/fig2": ["printed"],
    "frossl/balance": ["one_weight"],
    "dynamics/fig1": ["fixed_point"],
    "dynamics/fig2": ["relu", "sigmoid_start"],
    "dynamics/fig3": ["slower"],
    "dynamics/theorem3": ["sphere", "orthogonal", "expectation"],
    "dynamics/remark1": ["infonce", "cosine"],
    "dynamics/remark3": ["other_losses"],
    "directclr/fig3": ["printed"],
    "directclr/fig5": ["paper", "released"],
    "directclr/fig6": ["paper"],
}
"""Claims that the rows refute; all others of these figures hold. Clocks decide those of `TIMED`."""
INCONCLUSIVE = {f"frossl/{name}" for name in ("fig3", "sharpness", "corruptions")} | {"stepwise/networks"}
INCONCLUSIVE |= {f"directclr/{name}" for name in ("fig2", "table1", "table2", "fig10", "fig12", "length")}
"""Networks that are trained for seconds decide little."""
COMPUTED = [name for name in FIGURES if not is_campaign(name)]


def verdicts(name, rows):
    return {key: verdict.holds for key, verdict in load_figure(name).evaluate_claims(rows).items()}


@pytest.mark.parametrize("name", COMPUTED)
def test_smoke_rows_have_the_verdicts_of_the_theory_and_a_drawing(name, smoke_rows):
    rows = smoke_rows(name)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    drawing = load_figure(name).plot(rows)
    drawing.canvas.draw()
    assert all(axis.has_data() for axis in drawing.axes)
    found = verdicts(name, rows)
    assert all(claim.statement and claim.expected for claim in evaluate(name, rows))
    assert {key.partition(":")[0] for key in found} == set(FIGURES[name]) - {"title", "claim", "images"}
    if name not in INCONCLUSIVE:
        certain = {key: holds for key, holds in found.items() if key not in TIMED.get(name, ())}
        assert [key for key, holds in certain.items() if not holds] == REFUTED.get(name, [])


def test_each_refuted_claim_of_theory_has_a_severity_and_no_other_claim_has_one():
    for name, keys in REFUTED.items():
        result = load_committed(name)
        claims = dict(zip(verdicts(name, result.rows), result.claims, strict=True))
        refuted = {key for key in keys if claims[key].kind == "claim"}
        assert {key for key, claim in claims.items() if claim.severity in SEVERITIES} == refuted
        assert not any(claim.severity for key, claim in claims.items() if key not in refuted)


# Paths into the rows whose change refutes a claim: figure, claim, keys, and the new value as a function of the old.
CHANGES = [
    ("stepwise/steps", "times: the kernel machine", ("kernel", "measured"), lambda t: [1.05 * x for x in t]),
    ("stepwise/steps", "order", ("linear", "measured by mode"), lambda t: t[::-1]),
    ("stepwise/networks", "present: frossl", ("runs", 4, "eigenvalues", 0), lambda x: [each / 10 for each in x]),
    ("dynamics/fig1", "closed_form", ("runs", 0, "theory", "loss", -1), lambda x: 2 * x),
    ("dynamics/theorem3", "negative", ("planes", "negative", "paths", 0, 0, -1), lambda x: x + 0.1),
    ("dynamics/theorem3", "zero", ("planes", "zero", "error"), lambda x: 0.1),
    ("dynamics/theorem3", "square", ("square", "length", 0), lambda x: 0.9),
    ("dynamics/theorem3", "several", ("several", "error"), lambda x: 0.1),
    ("dynamics/theorem3", "covariance", ("expectation", "corrected"), lambda x: 0.1),
    ("dynamics/fig4", "pca_first", ("error",), lambda x: ""),
    ("dynamics/remark1", "fit", ("fitted",), lambda x: x + 1),
    ("dynamics/remark3", "gradient_relu", ("gradient", "residual, ReLU"), lambda x: 3),
    ("directclr/fig3", "rate", ("rates",), lambda x: [2 * r for r in x]),
    ("directclr/fig5", "balanced", ("balanced", 0, "diagonal", -1), lambda x: 0.1),
    ("directclr/fig6", "drift", ("drift",), lambda x: 5 * x),
    ("directclr/fig11", "one_layer", ("linear", 0, "end", -1), lambda x: 0.0),
    ("directclr/fig10", "rank_at_r", ("DirectCLR", 0, "ranks", "representation", 0), lambda x: 9),
    ("frossl/logarithms", "optimum", ("linear", 0, "ratio"), lambda x: 0.9 * x),
    ("frossl/logarithms", "network", ("network", 2, "ratio"), lambda x: 0.5 * x),
    ("frossl/logarithms", "fewer", ("network",), lambda runs: [row | {"log": not row["log"]} for row in runs]),
    (
        "frossl/balance",
        "rule: frossl",
        ("runs",),
        lambda runs: [
            row | {"share": row["share"] * (9 if row["factor"] == 1 and row["dimension"] == 32 else 1)} for row in runs
        ],
    ),
    ("frossl/sharpness", "edge", ("runs", 3, "λ_max", -1), lambda x: 10 * x),
    ("frossl/fig2", "corrected", ("frossl", "predicted_eigenvalues"), lambda x: x[::-1]),
]


@pytest.mark.parametrize(("name", "claim", "keys", "change"), CHANGES, ids=lambda x: x if isinstance(x, str) else "")
def test_other_rows_refute_the_claim(name, claim, keys, change, smoke_rows):
    rows = deepcopy(smoke_rows(name))
    *path, last = keys
    inner = rows
    for key in path:
        inner = inner[key]
    inner[last] = change(inner[last])
    assert verdicts(name, smoke_rows(name))[claim] is True
    assert verdicts(name, rows)[claim] is False


@pytest.mark.parametrize(
    ("times", "holds"), [([1.9, 2.0, 2.1], True), ([0.5, 0.6, 0.5], False), ([0.8, 1.0, 1.3], None)]
)
def test_the_cost_is_decided_by_the_interval_over_the_rounds(times, holds):
    others = [times, [4 * x for x in times]]
    seconds = {"frossl": [[1.0] * 3] * 2, "corinfomax": others, "ivne": others}
    rows = {axis: {axis: [16, 64], "seconds": seconds} for axis in "ND"}
    assert verdicts("frossl/cost", rows)["corinfomax"] is holds


def test_the_same_share_at_every_size_needs_no_weight(smoke_rows):
    runs = [row | {"share": 0.5 + 0.01 * row["seed"]} for row in smoke_rows("frossl/balance")["runs"]]
    assert verdicts("frossl/balance", {"runs": runs})["one_weight"] is True


def test_a_median_that_its_interval_does_not_separate_is_inconclusive(smoke_rows):
    def with_times(time):
        rows = deepcopy(smoke_rows("dynamics/fig3"))
        for k, run in enumerate(rows["runs"]):
            run["convergence_step"] |= {"horizontal": time(k), "descent": 100.0}
        return verdicts("dynamics/fig3", rows)["slower"]

    assert with_times(lambda k: 99.0 + 2 * (k % 2)) is None
    assert with_times(lambda k: 101.0 + k) is True


# DirectCLR's trained projectors.


def with_accuracies(percentages, *, spread):
    """Return three seeds per projector, whose common effect is much larger than the differences between projectors."""
    noise = {name: (spread * (k % 3 - 1), 0.0, -spread * (k % 3 - 1)) for k, name in enumerate(percentages)}
    return {
        name: [
            {"accuracy": {"whole": value / 100 + common + error}}
            for common, error in zip((-0.1, 0.0, 0.1), noise[name], strict=True)
        ]
        for name, value in percentages.items()
    }


def test_paired_seeds_decide_about_projectors():
    paper = load_figure("directclr/table2").PAPER
    assert set(verdicts("directclr/table2", with_accuracies(paper, spread=5e-4)).values()) == {True}
    noisy = verdicts("directclr/table2", with_accuracies(paper, spread=0.02))
    assert noisy["equal: low-rank-diagonal, low-rank"] is None
    reverse = dict(zip(paper, sorted(paper.values(), reverse=True), strict=True)) | {"dropout": 70.0}
    found = verdicts("directclr/table2", with_accuracies(reverse, spread=5e-4))
    assert {holds for key, holds in found.items() if key.startswith("better")} == {False}


def test_a_claim_about_the_papers_size_is_decided_only_there_and_its_comparison_anywhere():
    rows = with_accuracies(load_figure("directclr/table2").PAPER, spread=5e-4)
    small, paper = (evaluate("directclr/table2", rows, size) for size in ("small", "paper"))
    assert {claim.holds for claim in small if claim.kind == "claim"} == {None}
    assert [claim.holds for claim in small if claim.kind == "comparison"] == [True] * 7
    assert [claim.holds for claim in paper if claim.kind == "claim"] == [True] * 7
    assert {claim.kind for claim in paper} == {"claim"}


def test_a_run_of_the_study_is_read_again_and_ranks_are_of_the_gradient(smoke_rows, monkeypatch):
    rows = smoke_rows("directclr/table1")
    monkeypatch.setattr(trained, "pretrain", None)  # calling it would be a TypeError
    assert smoke_rows("directclr/fig2")["two layers"] == rows["two layers"]
    (run,) = rows["DirectCLR"]
    rank, channels = run["ranks"]["representation"]
    assert rank <= 4 < channels == run["representation"]["D"]


# The experiments' own parts.


def test_variance_shares_of_factors():
    factors = {"loss": 0.0, "network": 0.0}
    cells = [factors | {"constraint": a, "projector": b, "y": 2.0 * a + b} for a in (0, 1) for b in (0, 1)]
    expected = {"loss": 0, "constraint": 0.8, "network": 0, "projector": 0.2, "all but network": 1}
    assert remark3.variance_shares(cells, "y") == pytest.approx(expected, abs=1e-6)


def test_noise_and_random_negatives_give_minus_the_covariance():
    X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor(
        [2.0, 1, 0.5]
    )
    anchors = torch.arange(200).repeat(300)
    C = fig4.pair_matrix_with_noise(X, anchors, torch.Generator().manual_seed(1))
    torch.testing.assert_close(C, -torch.cov(X.mT, correction=0), rtol=0.05, atol=0.05)


def test_an_entry_gets_its_best_recipe_on_validation_images_and_seeds_their_own_images(monkeypatch):
    runs = []

    def run(recipe, *_):
        runs.append((recipe.seed, recipe.data.validation, recipe.data.subset_seed, recipe.optimizer.lr))
        if recipe.optimizer.lr == 0.1:
            raise UserError("the loss is not finite")
        return {"score": recipe.optimizer.lr}

    monkeypatch.setattr(trained, "train_and_evaluate", run)
    recipe, rates = study.SIZES["small"].recipe, (0.01, 0.03, 0.1)
    recipe = replace(recipe, data=replace(recipe.data, subset=100))
    entries = {"a": trained.at_rates(recipe, rates)}
    training = trained.Training(dict, "x", lambda run: 0.0, seeds=2)
    with pytest.raises(UserError):  # not an alarm of the run
        trained.train(entries, training, data=None, seed=5)
    monkeypatch.setattr(trained, "has_diverged", lambda path: True)
    runs.clear()
    found = trained.train(entries, training, data=None, seed=5)
    assert found == {"a": [{"score": 0.03}] * 2}
    choice = [(trained.CHOICE_SEED, 0.1, trained.CHOICE_SEED, rate) for rate in rates]
    assert runs == [*choice, (5, 0.0, 5, 0.03), (6, 0.0, 6, 0.03)]


def test_each_network_of_the_study_takes_the_best_rate_but_one_of_rate_zero_keeps_it(monkeypatch):
    found = {}
    monkeypatch.setattr(study, "train", lambda candidates, *args, **options: found.update(candidates) or {})
    size = study.SIZES["small"]
    frozen = replace(size.recipe, optimizer=replace(size.recipe.optimizer, lr=0.0))
    study.run_study(size, {"trained": size.recipe, "untrained": frozen}, data=None, seed=0)
    rates = {name: tuple(recipe.optimizer.lr for recipe in recipes) for name, recipes in found.items()}
    assert rates == {"trained": size.rates, "untrained": (0.0,)}


def test_the_rank_that_falls_by_a_tenth_after_a_quarter_of_the_run_decides():
    def runs(*ranks):
        return [
            {"epochs": [0, 5, 10, 20], "r": [1.0, x, 0.0, y], "z": [1.0, y, 0.0, x]}
            for x, y in (ranks, [1.01 * x for x in ranks])
        ]

    rows = {"two layers": {"0.1": runs(9.0, 8.0)}, "none": {"0.1": runs(9.0, 8.2)}}
    found = load_figure("directclr/length").evaluate_claims(rows)
    assert {name: verdict.holds for name, verdict in found.items()} == {
        "falls: r, two layers, 0.1": True,
        "falls: z, two layers, 0.1": False,
        "falls: r, none, 0.1": False,
    }


def test_a_lead_at_equal_share_changes_its_sign_if_the_two_are_exchanged():
    figure, early = load_figure("frossl/sharpness"), torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0))
    rates, limits = torch.logspace(-4, 2, 7).numpy(), torch.tensor([[0.1, 0.2, 0.5], [0.3, 0.3, 0.1]]).numpy()
    one, other = (figure.Curves(rates, limit, x.numpy(), x.numpy()) for limit, x in zip(limits, early, strict=True))
    for at in ("rate", "share", "best"):
        assert figure.leads(one, other, at) == pytest.approx([-lead for lead in figure.leads(other, one, at)])
    assert figure.leads(one, other, "rate") == pytest.approx((early[0] - early[1]).mean(1).tolist())


def test_a_lead_without_a_common_share_of_the_limit_is_undecided():
    figure = load_figure("frossl/sharpness")
    rows = {"runs": []}
    for objective, curvature in (("frossl", [1.0, 1.0]), ("simclr", [1e9, 1.0])):  # of seed 0 no share is common
        for rate, (seed, start) in product((0.1, 1.0), enumerate(curvature)):
            accuracy = [20.0 + (objective == "frossl") + 0.1 * seed] * (figure.POINTS + 1)
            rows["runs"].append(
                {"objective": objective, "rate": rate, "seed": seed, "accuracy": accuracy, "λ_max": [start, 1.0]}
            )
    found = figure.evaluate_claims(rows)
    assert (found["rate: simclr"].holds, found["share: simclr"].holds) == (True, None)
