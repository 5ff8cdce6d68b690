from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fullrank.views import JitterConfig, ViewConfig
from fullrank.views.augmentation_params import UNIFORMS, make_params
from fullrank.views.operations import COLUMNS, JITTER_ORDERS, NUM_BLENDS, apply_operations_, build_operation_table

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
    jitter = JitterConfig(probability=1.0, brightness=0.8, contrast=0.8, saturation=0.8, hue=hue)
    view = ViewConfig(count=1, jitter=jitter, grayscale=0.0)
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
