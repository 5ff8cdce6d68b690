"""Fig. 10 at its smoke size: the gradient has the claimed ranks in every run; probes with one seed are undecidable."""

import torch

from fullrank_papers.figures.directclr.fig10 import FIGURE, make_recipes


def test_gradient_has_rank_d0_at_r_and_full_rank_one_block_before(rows):
    at_r, at_h, *probes = FIGURE.claims(rows)
    assert at_r.holds
    assert at_h.holds
    assert (at_r.measured, at_h.measured) == ("4 of 16", "16 of 16")
    assert [claim.holds for claim in probes] == [None] * 4


def test_other_gradient_ranks_refute_the_claims(rows):
    other = rows | {
        "DirectCLR": [run | {"ranks": {"representation": [5, 16], "block": [15, 16]}} for run in rows["DirectCLR"]]
    }
    assert [claim.holds for claim in FIGURE.claims(other)[:2]] == [False, False]


def test_learning_rate_zero_changes_only_batchnorm_statistics(smoke, tmp_path):
    from fullrank.models import load
    from fullrank.run.pretrain import pretrain

    path = pretrain(make_recipes(smoke.recipe)["untrained"], out=tmp_path / "run").path
    model = load(path)
    fresh = dict(model.untrained().named_parameters())
    assert all(torch.equal(weight, fresh[name]) for name, weight in model.backbone.named_parameters())
    assert not torch.equal(model.backbone.bn1.running_mean, torch.zeros_like(model.backbone.bn1.running_mean))


def test_loss_without_shortcut_is_compared_with_loss_of_sub_vector():
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
    equal_loss = rows | {"no shortcut": runs(0.36, 0.48)}  # both parts lose twelve points
    assert [bool(claim.holds) for claim in FIGURE.claims(equal_loss)] == [True, True, True, True, False, True]


def test_plot(rows):
    (axis,) = FIGURE.plot(rows).axes
    assert len(axis.lines) == 12
