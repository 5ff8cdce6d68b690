import ast
import inspect
import json
from dataclasses import asdict

import pytest
import tyro

from fullrank.errors import UserError
from fullrank.structure import structure
from fullrank.views import AffineConfig, BlurConfig, CropConfig, JitterConfig, SolarizeConfig, ViewConfig, config


def test_a_config_equals_its_json_round_trip():
    view = ViewConfig(
        count=6, size=96, crop=CropConfig(scale=(0.05, 0.4)), blur=BlurConfig(probability=0.5), grayscale=0.1
    )
    assert structure(json.loads(json.dumps(asdict(view))), ViewConfig, "view") == view


def test_a_config_can_be_given_on_the_command_line():
    view = tyro.cli(
        ViewConfig,
        args=["--size", "96", "--crop.scale", "0.2", "1.0", "--jitter.hue", "0.05", "--blur.probability", "0.5"],
    )
    assert view == ViewConfig(
        size=96, crop=CropConfig(scale=(0.2, 1.0)), jitter=JitterConfig(hue=0.05), blur=BlurConfig(probability=0.5)
    )


def test_every_field_has_a_docstring():
    for node in ast.walk(ast.parse(inspect.getsource(config))):
        if isinstance(node, ast.ClassDef) and node.decorator_list:  # a dataclass
            for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign):
                    assert isinstance(below, ast.Expr), ast.unparse(field)
                    assert isinstance(ast.literal_eval(below.value), str)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ViewConfig(count=0), "view.count: got 0, expected int from 1"),
        (lambda: ViewConfig(flip=1.5), "view.flip: got 1.5, expected float from 0 to 1"),
        (lambda: ViewConfig(jitter=JitterConfig(hue=0.6)), "view.jitter.hue: got 0.6, expected float from 0 to 0.5"),
        (
            lambda: ViewConfig(jitter=JitterConfig(contrast=-0.1)),
            "view.jitter.contrast: got -0.1, expected float from 0",
        ),
        (
            lambda: ViewConfig(crop=CropConfig(scale=(1.0, 0.2))),
            "view.crop.scale: got (1.0, 0.2), expected values with the smaller one first",
        ),
        (
            lambda: ViewConfig(blur=BlurConfig(sigma=(0.0, 2.0))),
            "view.blur.sigma[0]: got 0.0, expected float from 0.001",
        ),
        (
            lambda: ViewConfig(affine=AffineConfig(translate=(2.0, 0.0))),
            "view.affine.translate[0]: got 2.0, expected float from 0 to 1",
        ),
        (
            lambda: ViewConfig(solarize=SolarizeConfig(threshold=128.0)),
            "view.solarize.threshold: got 128.0, expected float from 0 to 1",
        ),
    ],
)
def test_an_invalid_value_is_named(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value).startswith(message)
