"""Fig. 5 at its smoke size: alignment from three starts."""

import torch

from fullrank_papers.figures.directclr.fig5 import FIGURE, linear_flows, released_flows
from fullrank_papers.figures.directclr.toy_models import paper_start, released_flow, seeded_generator
from fullrank_papers.theory.infonce import linear_vector_field


def test_only_a_balanced_start_aligns_all_modes(rows):
    identity, released, balanced, floor, subspace, blocks = FIGURE.claims(rows)
    assert not identity.holds
    assert not released.holds
    assert balanced.holds
    assert floor.holds
    assert subspace.holds
    assert blocks.holds
    kinds = ["claim", "claim", "correction", "correction", "correction", "claim"]
    assert [claim.kind for claim in (identity, released, balanced, floor, subspace, blocks)] == kinds


def test_bound_is_informative_for_grown_modes(rows):
    floor = rows["paper"][0]["floor"]
    assert max(floor[:5]) > 0.5
    assert floor[-1] == 0


def test_starts_that_are_trained_at_once_have_the_velocities_of_each_alone():
    rng = seeded_generator(0)
    starts = [paper_start(rng) for _ in range(3)]
    x = torch.randn(3, 2, 20, 16, generator=rng, dtype=torch.float64)
    weights = [torch.stack(layers) for layers in zip(*starts, strict=True)]
    for together, alone in ((linear_flows, linear_vector_field), (released_flows, released_flow)):
        expected = [
            torch.stack(layers)
            for layers in zip(*(alone(W, pairs) for W, pairs in zip(starts, x, strict=True)), strict=True)
        ]
        for found, other in zip(together(weights, x), expected, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-9, atol=1e-9)


def test_a_start_whose_subspace_does_not_align_refutes_the_correction(rows):
    claims = FIGURE.claims(rows | {"paper": [run | {"cosines": [0.5] * len(run["cosines"])} for run in rows["paper"]]})
    assert not claims[4].holds
