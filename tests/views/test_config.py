import json
from dataclasses import asdict

import pytest
import tyro

from fullrank.config import from_json
from fullrank.errors import UserError
from fullrank.views import BlurConfig, CropConfig, JitterConfig, ViewConfig


def test_a_config_equals_its_json_round_trip():
    crop, blur = CropConfig(scale=(0.05, 0.4)), BlurConfig(probability=0.5)
    view = ViewConfig(count=6, size=96, crop=crop, blur=blur, grayscale=0.1)
    assert from_json(ViewConfig, json.dumps(asdict(view)), "view") == view


def test_a_config_can_be_given_on_the_command_line():
    words = "--size 96 --crop.scale 0.2 1.0 --jitter.hue 0.05 --blur.probability 0.5"
    crop, blur = CropConfig(scale=(0.2, 1.0)), BlurConfig(probability=0.5)
    expected = ViewConfig(size=96, crop=crop, jitter=JitterConfig(hue=0.05), blur=blur)
    assert tyro.cli(ViewConfig, args=words.split()) == expected


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ViewConfig(count=0), "count: got 0"),
        (lambda: ViewConfig(flip=1.5), "flip: got 1.5"),
        (lambda: JitterConfig(hue=0.6), "hue: got 0.6"),
        (lambda: CropConfig(scale=(1.0, 0.2)), "scale: got"),
        (lambda: BlurConfig(sigma=(0.0, 2.0)), "sigma.0: got 0.0"),
    ],
)
def test_an_invalid_value_is_named(make, field):
    with pytest.raises(UserError, match=field):
        make()
