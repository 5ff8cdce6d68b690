"""Fig. 2 at its smoke size, and its claims on synthetic spectra."""

from fullrank_papers.figures.directclr.fig2 import FIGURE


def test_few_steps_collapse_no_dimension_but_reduce_the_rank(rows):
    zero, subspace = FIGURE.claims(rows)
    assert not zero.holds
    assert zero.measured.startswith("0 of 8")
    assert subspace.holds


def test_every_run_must_have_collapsed_dimensions():
    def runs(*counts):
        return {
            "two layers": [
                {
                    "embedding": {
                        "collapsed_dimensions": d,
                        "D": 128,
                        "effective_rank": 125.0 - d,
                        "eigenvalues": [1.0, 10.0 ** -(6 * (d > 0))],
                    }
                }
                for d in counts
            ]
        }

    assert [claim.holds for claim in FIGURE.claims(runs(30, 25))] == [True, True]
    assert [claim.holds for claim in FIGURE.claims(runs(30, 0))] == [None, None]
    assert [claim.holds for claim in FIGURE.claims(runs(0, 0))] == [False, False]


def test_plot(rows):
    (axis,) = FIGURE.plot(rows).axes
    assert [len(line.get_xdata()) for line in axis.lines] == [8, 16]
