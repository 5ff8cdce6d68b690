from copy import deepcopy
from functools import partial

import pytest
import torch

from fullrank import methods
from fullrank.methods.backbones import build_backbone, feature_dim
from fullrank.objectives import frossl


@pytest.fixture
def method():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arguments = {"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1]}
        backbone = build_backbone(methods.BackboneConfig(arguments=arguments, stem="small"))
        projector = methods.build_projector(methods.ProjectorConfig(widths=(12, 6)), feature_dim(backbone))
        return methods.JointEmbedding(backbone, projector, partial(frossl, invariance=2.0))


@pytest.fixture
def views():
    """Two views of 16 px and three of 8 px, with different brightness."""
    rng = torch.Generator().manual_seed(0)
    scale = torch.arange(1.0, 4.0).view(-1, 1, 1, 1, 1)
    return [scale[:2] * torch.rand(2, 10, 3, 16, 16, generator=rng), scale * torch.rand(3, 10, 3, 8, 8, generator=rng)]


def test_shapes_of_views_of_two_sizes(method, views):
    embeddings = method(views)
    assert {name: tuple(tensor.shape) for name, tensor in embeddings.items()} == {"R": (2, 10, 16), "Z": (5, 10, 6)}


def test_representations_are_those_of_the_full_size_views(method, views):
    method.eval()
    embeddings = method(views)
    torch.testing.assert_close(embeddings["R"], torch.stack([method.backbone(view) for view in views[0]]))
    Z = method.projector(embeddings["R"].flatten(0, 1)).unflatten(0, (2, 10))
    torch.testing.assert_close(embeddings["Z"][:2], Z)
    torch.testing.assert_close(embeddings["Z"][4], method.projector(method.backbone(views[1][2])))


def test_batch_norm_sees_one_view_at_a_time(method, views):
    alone, together = deepcopy(method), deepcopy(method)
    Z = method(views)["Z"]
    for v, view in enumerate([*views[0], *views[1]]):
        torch.testing.assert_close(Z[v], alone.projector(alone.backbone(view)))
    assert int(method.backbone.bn1.num_batches_tracked) == 5
    mixed = together.projector(together.backbone(views[0].flatten(0, 1))).unflatten(0, (2, 10))
    assert (Z[:2] - mixed).abs().max() > 0.01
