"""Table 1 with Figs. 7 and 9 at its smoke size, and its claims on synthetic spectra."""

from fullrank_papers.figures.directclr.table1 import FIGURE, PAPER


def test_one_seed_is_undecidable(rows):
    claims = FIGURE.claims(rows)
    assert [claim.holds for claim in claims] == [None] * 4 + [False] + [None] * 3


def test_claims_hold_for_the_papers_accuracies_and_collapse():
    def run(name, seed):
        collapsed = 40 if name == "none" else 0
        spectrum = {
            "collapsed_dimensions": collapsed,
            "D": 128,
            "effective_rank": 80 - collapsed + seed / 10 + len(name) / 100,
        }
        return {"accuracy": {"whole": PAPER[name] / 100 + seed / 50}, "representation": spectrum}

    rows = {name: [run(name, seed) for seed in range(3)] for name in PAPER}
    assert all(claim.holds for claim in FIGURE.claims(rows))
    assert FIGURE.claims(rows)[4].measured == "40 of 128, 40 of 128, 40 of 128"


def test_plot(rows):
    accuracies, spectra = FIGURE.plot(rows).axes
    assert len(accuracies.get_yticks()) == len(spectra.lines) == 4
