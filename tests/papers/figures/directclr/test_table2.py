"""Table 2 at its smoke size, and its claims on synthetic accuracies."""

from fullrank_papers.figures.directclr.table2 import FIGURE, PAPER


def test_one_seed_is_undecidable_but_shows_equal_losses(rows):
    *paper, same_loss = FIGURE.claims(rows)
    assert [claim.holds for claim in paper] == [None] * 9
    assert same_loss.holds
    assert same_loss.kind == "correction"


def test_different_losses_refute_the_correction(rows):
    other = rows | {"orthogonal": rows["linear"]}
    assert not FIGURE.claims(other)[-1].holds


def synthetic(accuracies, *, spread):
    """Return three seeds per projector. The seeds' common effect is much larger than the differences between
    projectors."""
    common = (-0.1, 0.0, 0.1)
    noise = {name: (spread * (k % 3 - 1), 0.0, -spread * (k % 3 - 1)) for k, name in enumerate(accuracies)}
    return {
        name: [
            {"accuracy": {"whole": accuracy / 100 + c + e}, "losses": [5.0]}
            for c, e in zip(common, noise[name], strict=True)
        ]
        for name, accuracy in accuracies.items()
    }


def test_claims_hold_for_the_papers_accuracies_with_little_noise():
    assert all(claim.holds for claim in FIGURE.claims(synthetic(PAPER, spread=5e-4)))


def test_small_differences_are_undecidable_with_much_noise():
    verdicts = [claim.holds for claim in FIGURE.claims(synthetic(PAPER, spread=0.02))]
    assert verdicts[1:3] == [None, None]
    assert verdicts[5] is None


def test_reversed_order_refutes_the_claims():
    reversed_order = dict(zip(PAPER, sorted(PAPER.values(), reverse=True), strict=True))
    claims = FIGURE.claims(synthetic(reversed_order | {"dropout": 70.0}, spread=5e-4))
    assert all(claim.holds is False for claim in claims[3:9])
    different = FIGURE.claims(synthetic(PAPER | {"low-rank": 55.0}, spread=5e-4))[1]
    assert different.holds is False


def test_plot(rows):
    (axis,) = FIGURE.plot(rows).axes
    assert [label.get_text() for label in axis.get_yticklabels()][:2] == ["none", "orthogonal"]
    (printed,) = axis.child_axes
    assert [label.get_text() for label in printed.get_yticklabels()][-2:] == ["paper: 62.7 %", "paper: 43.0 %"]
