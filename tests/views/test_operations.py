from dataclasses import replace
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torchvision.transforms.v2 import functional as F

from fullrank.views import JitterConfig, ViewConfig
from fullrank.views.apply import apply_operations_
from fullrank.views.augmentation_params import UNIFORMS, make_params
from fullrank.views.operations import COLUMNS, JITTER_ORDERS, NUM_BLENDS, build_operation_table, flips_and_transpose

ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def params_with(view, n, **columns):
    """Return parameters with given values in the named columns."""
    params = make_params(1, n, seed=0, step=0)
    uniforms = params.uniforms.clone()
    for name, value in columns.items():
        uniforms[..., UNIFORMS[name].start] = torch.as_tensor(value, dtype=torch.float64)
    return replace(params, uniforms=uniforms), [view]


@pytest.mark.parametrize("hue", [0.0, 0.2])
def test_every_order_of_the_jitter_equals_torchvision_step_by_step(hue):
    assert sorted(JITTER_ORDERS) == sorted(permutations(range(4)))
    view = ViewConfig(
        count=1,
        jitter=JitterConfig(probability=1.0, brightness=0.8, contrast=0.8, saturation=0.8, hue=hue),
        grayscale=0.0,
    )
    params, configs = params_with(view, 24, jitter_order=(torch.arange(24) + 0.5) / 24)
    table = build_operation_table(params, configs)[0]
    x = torch.rand(24, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    out = apply_operations_(x.clone(), table, table, blur_radius=1)
    factor = {k: 0.2 + 1.6 * params[name][0] for k, name in enumerate(("brightness", "contrast", "saturation"))}
    factor[3] = (2 * params["hue"][0] - 1) * hue
    for i, order in enumerate(JITTER_ORDERS):
        expected = x[i]
        for k in order:
            expected = ADJUST[k](expected, factor[k][i].item())
        torch.testing.assert_close(out[i], expected, atol=2e-5, rtol=0)


def test_orders_are_equally_likely():
    order = (24 * make_params(1, 20_000, seed=0, step=0)["jitter_order"]).long().flatten()
    assert chisquare(order.bincount(minlength=24).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("quarter", [None, 0, 1, 2])
@pytest.mark.parametrize(("x", "y"), [(False, False), (True, False), (False, True), (True, True)])
def test_flips_and_transpose_equal_rotations_and_flips(quarter, x, y):
    view = ViewConfig(quarter_turns=0.5, flip=0.5, vertical_flip=0.5)
    rotation = {"rotate": 0.9} if quarter is None else {"rotate": 0.1, "quarter_turns": (quarter + 0.5) / 3}
    flips, transpose = flips_and_transpose(
        *params_with(view, 1, flip=0.1 if x else 0.9, vertical_flip=0.1 if y else 0.9, **rotation)
    )
    image = torch.arange(9).view(3, 3)
    expected = torch.rot90(image, 0 if quarter is None else quarter + 1)
    expected = expected.flip([axis for axis, on in ((-1, x), (-2, y)) if on])
    ours = image.flip([axis for axis, on in zip((-1, -2), flips[0, 0], strict=True) if on])
    assert torch.equal(ours.T if transpose[0, 0] else ours, expected)


@pytest.mark.parametrize("turn", [[0.1, 0.1, 0.1], [0.1, 0.9, 0.1]])
def test_some_or_all_images_are_transposed(turn):
    view = ViewConfig(quarter_turns=0.5, flip=0.0, jitter=JitterConfig(probability=0.0), grayscale=0.0)
    params, configs = params_with(view, 3, rotate=torch.tensor(turn), quarter_turns=0.1)
    table = build_operation_table(params, configs)[0]
    x = torch.rand(3, 3, 10, 10)
    expected = [image.mT if t < 0.5 else image for image, t in zip(x, turn, strict=True)]
    assert torch.equal(apply_operations_(x.clone(), table, table, blur_radius=1), torch.stack(expected))


def test_disabled_operations_are_the_identity():
    view = ViewConfig(flip=0.0, jitter=JitterConfig(probability=0.0), grayscale=0.0)
    table = build_operation_table(make_params(1, 8, seed=0, step=0), [view])[0]
    x = torch.rand(8, 3, 10, 10)
    assert torch.equal(apply_operations_(x.clone(), table, table, blur_radius=1), x)


def test_operations_have_their_probabilities():
    view = ViewConfig(flip=0.3, grayscale=0.2, quarter_turns=0.4, jitter=JitterConfig(probability=0.8))
    table = build_operation_table(make_params(1, 20_000, seed=0, step=0), [view])[0]
    fraction = {
        "grayscale": (table[:, COLUMNS["blends"]].unflatten(-1, (NUM_BLENDS, 3))[:, -1, 1] == 1).double().mean(),
        "jitter": (table[:, COLUMNS["hue"]] != 0).double().mean(),
        "transposed": (table[:, COLUMNS["transpose"]] != 0).double().mean(),
    }
    for name, expected in {"grayscale": 0.2, "jitter": 0.8, "transposed": 0.4 * 2 / 3}.items():
        assert fraction[name].item() == pytest.approx(expected, abs=0.015)
