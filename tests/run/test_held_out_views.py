from copy import deepcopy

import pytest
import torch
from torch import nn

from fullrank.methods import JointEmbedding
from fullrank.objectives import frossl, total
from fullrank.run import held_out_views
from fullrank.run.held_out_views import deviations, evaluate_held_out_views
from fullrank.training.seeding import mix
from fullrank.views import MultiViewTransform, ViewConfig

N, SIZE = 24, 8
PIXELS = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_transform(*custom_transforms, configs=None):
    return MultiViewTransform(
        configs or ViewConfig(size=SIZE), mean=(0.5,), std=(0.25,), channels=1, custom_transforms=custom_transforms
    )


@pytest.fixture
def method():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 12), nn.BatchNorm1d(12), nn.Dropout(0.5))
    return JointEmbedding(backbone, nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6)), frossl)


def evaluate(method, transform=None, *, pixels=PIXELS, batch_size=N, with_loss=True, seed=3):
    views = transform or make_transform()
    return evaluate_held_out_views(method, pixels, views, seed=seed, batch_size=batch_size, with_loss=with_loss)


def test_the_loss_is_that_of_the_objective_on_views_of_the_first_held_out_images(method):
    transform = make_transform()
    views = transform(PIXELS[:N], transform.make_params(mix(3, held_out_views.HELD_OUT_STREAM), 0, N))
    with torch.no_grad():
        method.eval()
        expected = total(method.terms(method(views))).item()
    method.train()
    assert evaluate(method).loss == expected


def test_the_parts_of_a_batch_give_the_loss_of_the_whole(method, monkeypatch):
    whole = evaluate(method).loss
    monkeypatch.setattr(held_out_views, "CHUNK", 7)
    assert evaluate(method).loss == pytest.approx(whole, rel=1e-6)


def test_views_of_several_sizes_are_embedded(method):
    method.backbone = nn.Sequential(nn.AdaptiveAvgPool2d(SIZE), method.backbone)
    configs = (ViewConfig(size=SIZE), ViewConfig(size=4, count=3))
    assert evaluate(method, make_transform(configs=configs)).loss is not None


def test_nothing_that_is_trained_and_no_random_state_changes(method):
    before, state = deepcopy(method.state_dict()), torch.get_rng_state()
    modes = [part.training for part in method.modules()]
    first = evaluate(method)
    assert evaluate(method) == first  # the same images and augmentation again
    assert evaluate(method, seed=4) != first
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in method.modules()] == modes
    assert all(parameter.grad is None for parameter in method.parameters())


def test_fewer_images_than_a_batch_are_used_and_an_objective_may_refuse_them(method):
    assert evaluate(method, pixels=PIXELS[:10]).loss is not None

    def refuse(Z):
        raise ValueError("too few images")

    method.objective = refuse
    assert evaluate(method, pixels=PIXELS[:10]).loss is None
    with pytest.raises(ValueError, match="too few"):
        evaluate(method)


def test_a_loss_that_is_not_finite_is_not_reported(method):
    with torch.no_grad():
        method.projector[0].weight.fill_(float("nan"))
    assert evaluate(method).loss is None


@pytest.mark.parametrize(
    ("transform", "over_images", "over_pixels"),
    [
        (lambda x, generator: x, True, True),
        (lambda x, generator: x * 0, False, False),
        (lambda x, generator: x[:, :1].expand_as(x).clone(), False, True),  # every view is that of the first image
        (lambda x, generator: x.mean((-2, -1), keepdim=True).expand_as(x).clone(), True, False),  # the mean colour
        (lambda x, generator: torch.cat([x[:1], x[1:] * 0]), False, False),  # only the second view
    ],
)
def test_views_without_variance_have_no_deviation(method, transform, over_images, over_pixels):
    found = evaluate(method, make_transform(transform), with_loss=False)
    assert found.loss is None
    assert (found.image_deviation > 1e-3, found.pixel_deviation > 1e-3) == (over_images, over_pixels)


def test_a_single_image_has_no_deviation_over_images():
    image_deviation, pixel_deviation = deviations([torch.randn(2, 1, 1, 8, 8)])
    assert image_deviation is None
    assert pixel_deviation > 0.5
