import pytest
import torch

from fullrank_papers.figures.dynamics.fig2 import FIGURE, exponent, rms


def test_two_claims_are_refuted(rows):
    failed = [claim.statement for claim in FIGURE.claims(rows) if not claim.holds]
    assert [statement.partition(":")[0] for statement in failed] == ["ReLU", "sigmoid"]


def test_sigmoid_in_place_of_tanh_refutes_the_claims(rows):
    swapped = {**rows, "widths": [{**row, "tanh": row["sigmoid"], "relu": row["tanh"]} for row in rows["widths"]]}
    verdicts = [claim.holds for claim in FIGURE.claims(swapped)]
    assert (verdicts[0], verdicts[1]) == (False, True)
    assert not any(verdicts[5:7])


def test_rms_is_over_starts_and_samples():
    U = torch.arange(24, dtype=torch.float64).reshape(2, 3, 2, 2)
    for k in range(3):
        naive = sum(U[s, k, i, j] ** 2 for s in range(2) for i in range(2) for j in range(2)) / 4
        assert rms(U)[k] == pytest.approx(naive.sqrt())


def test_exponent_of_a_power_law():
    rows = {"widths": [{"width": h, "tanh": {"end": 3 * h**-1.25}} for h in (10, 20, 70)]}
    assert exponent(rows, "tanh", "end") == pytest.approx(-1.25)


def test_plot_has_a_column_per_activation(rows):
    assert [axes.get_title(loc="left") or axes.get_title() for axes in FIGURE.plot(rows).axes[:3]] == [
        "sigmoid",
        "ReLU",
        "tanh",
    ]


def test_a_single_large_endpoint_does_not_decide_the_claim_on_the_sigmoid(rows):
    """Values that grow at the largest width of a few starts only: the ratio of the endpoints of all starts together
    would say growth."""
    flat = [
        {**row, "sigmoid": {**row["sigmoid"], "late": [1.0] * len(row["sigmoid"]["late"])}} for row in rows["widths"]
    ]
    flat[-1]["sigmoid"]["late"][0] = 100.0
    (verdict,) = [
        claim
        for claim in FIGURE.claims({**rows, "widths": flat})
        if claim.statement.startswith("sigmoid: the difference grows with the width after")
    ]
    assert not verdict.holds
