import re

import pytest

from fullrank_papers.figures.dynamics.fig3 import FIGURE


@pytest.fixture(scope="module")
def claims(rows):
    return FIGURE.claims(rows)


def claim(claims, words):
    (found,) = [claim for claim in claims if re.search(words, claim.statement)]
    return found


def test_both_end_at_the_same_loss_and_outputs_and_stay_close(claims):
    for words in ("same final loss", "stay close", "same final outputs"):
        assert claim(claims, words).holds
        assert claim(claims, words).kind == "claim"


def test_flow_is_slower_only_for_narrow_networks(claims):
    slower = claim(claims, "slightly slower")
    assert not slower.holds
    narrow, wide = (float(x) for x in re.findall(r"([\d.]+) \([\d.]+ to [\d.]+\) at", slower.measured))
    assert narrow > 1.02
    assert wide < 1


def test_training_follows_the_polar_flow(claims):
    for words in ("follows the polar flow", "slower than the polar flow", "rotation apart", "C is averaged"):
        assert claim(claims, words).holds
        assert claim(claims, words).kind == "correction"


def test_training_along_the_papers_flow_refutes_the_correction(rows):
    swapped = rows | {"order": {"horizontal": rows["order"]["polar"], "polar": rows["order"]["horizontal"]}}
    assert not claim(FIGURE.claims(swapped), "follows the polar flow").holds


def test_plot_draws_both_equations_for_each_start(rows):
    figure = FIGURE.plot(rows)
    losses, outputs, _ = figure.axes
    assert len(outputs.lines) == 3 * sum("curves" in run for run in rows["runs"]) + 1
    assert losses.get_xlabel() == "t = learning rate × step"


def test_a_median_that_its_interval_does_not_separate_from_one_is_undecidable(rows):
    def with_times(horizontal):
        steps = ({"descent": 100.0, "horizontal": horizontal(k), "polar": 100.0} for k in range(len(rows["runs"])))
        return rows | {
            "runs": [run | {"convergence_step": step} for run, step in zip(rows["runs"], steps, strict=True)]
        }

    assert claim(FIGURE.claims(with_times(lambda k: 99.0 + 2 * (k % 2))), "slightly slower").holds is None
    assert claim(FIGURE.claims(with_times(lambda k: 101.0 + k)), "slightly slower").holds
