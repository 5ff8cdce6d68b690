"""Fig. 12 at its smoke size, and its claims on synthetic accuracies."""

from fullrank_papers.figures.directclr.fig12 import FIGURE


def test_sweep_covers_all_d0_and_one_seed_is_undecidable(rows):
    assert list(rows["runs"]) == ["2", "4", "all"]
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [None] * 3
    assert "d0 = 4 is better than d0 = 2" in claims[0].statement


def test_claims_require_a_maximum_between_the_ends():
    def rows(**accuracies):
        runs = {
            d0.removeprefix("d"): [
                {"accuracy": {"whole": a + k / 10 + k * a / 1e3}, "representation": {"effective_rank": 100 * a + k * a}}
                for k in range(3)
            ]
            for d0, a in accuracies.items()
        }
        return {"tuned": "22", "runs": runs}

    assert [claim.holds for claim in FIGURE.claims(rows(d4=0.4, d11=0.7, d22=0.6, all=0.5))] == [True, True, True]
    assert [claim.holds for claim in FIGURE.claims(rows(d4=0.4, d11=0.5, d22=0.6, all=0.7))] == [True, False, False]


def test_plot(rows):
    accuracy, rank = FIGURE.plot(rows).axes
    assert accuracy.lines[0].get_xdata().tolist() == [2, 4, 16]
    assert rank.get_ylabel() == "effective rank of r"
