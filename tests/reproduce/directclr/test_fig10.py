"""Fig. 10 at its smoke size: the ranks of the gradient hold in every run, and probes of one seed resolve nothing."""

import json

import pytest
import torch

from fullrank.reproduce.directclr.fig10 import FIGURE, networks


@pytest.fixture(scope="module")
def rows(smoke):
    return FIGURE.compute(smoke, data=None, seed=0)


def test_the_gradient_is_of_rank_d0_at_r_and_of_full_rank_a_block_before(rows):
    at_r, at_h, *probes = FIGURE.claims(rows)
    assert at_r.holds
    assert at_h.holds
    assert (at_r.measured, at_h.measured) == ("4 of 16", "16 of 16")
    assert [claim.holds for claim in probes] == [False] * 4


def test_a_gradient_of_another_rank_would_be_seen(rows):
    other = rows | {"DirectCLR": [run | {"ranks": {"representation": [5, 16], "block": [15, 16]}} for run in rows["DirectCLR"]]}
    assert [claim.holds for claim in FIGURE.claims(other)[:2]] == [False, False]


def test_at_learning_rate_zero_weights_stay_and_batchnorm_learns_its_statistics(smoke, tmp_path):
    from fullrank.loading import load
    from fullrank.pretraining import pretrain

    path = pretrain(networks(smoke.recipe)["untrained"], out=tmp_path / "run").path
    model = load(path)
    fresh = dict(model.untrained().named_parameters())
    assert all(torch.equal(weight, fresh[name]) for name, weight in model.backbone.named_parameters())
    assert not torch.equal(model.backbone.bn1.running_mean, torch.zeros_like(model.backbone.bn1.running_mean))


def test_what_is_lost_without_the_shortcut_is_held_against_what_the_sub_vector_loses():
    def runs(first, rest):
        part = {"whole": 0.63, "next": 0.2}
        return [
            {
                "accuracy": part | {"first": first + k / 100, "rest": rest + k / 100 + k * k / 1e4},
                "ranks": {"representation": [4, 16], "block": [16, 16]},
            }
            for k in range(3)
        ]

    rows = {"d0": 4, "DirectCLR": runs(0.48, 0.6), "no shortcut": runs(0.4, 0.3), "untrained": runs(0.2, 0.25)}
    assert all(claim.holds for claim in FIGURE.claims(rows))
    alike = rows | {"no shortcut": runs(0.36, 0.48)}  # both parts lose twelve points
    assert [claim.holds for claim in FIGURE.claims(alike)] == [True, True, True, True, False, True]


def test_rows_survive_json_and_are_drawn(rows):
    kept = json.loads(json.dumps(rows, allow_nan=False))
    assert FIGURE.claims(kept) == FIGURE.claims(rows)
    (axis,) = FIGURE.plot(kept).axes
    assert len(axis.lines) == 12
