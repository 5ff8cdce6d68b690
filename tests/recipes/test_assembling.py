from dataclasses import replace
from typing import get_args

import pytest
import torch

from fullrank import recipes
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES, total
from fullrank.recipes.assembling import build_transform, check_num_images
from fullrank.views import ViewConfig

TINY = recipes.Recipe(
    data=recipes.DataConfig(channels=1, mean=(0.5,), std=(0.25,)),
    views=(ViewConfig(count=2, size=8), ViewConfig(count=1, size=6)),
    backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(16, 6)),
    hyper={"invariance": 2.0},
    batch_size=8,
)
SIZES = (ViewConfig(count=1, size=8), ViewConfig(count=1, size=6))
TWO = replace(TINY, views=TINY.views[:1])
IMAGES = torch.randint(0, 256, (5, 1, 10, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_the_parts_have_matching_shapes():
    parts = recipes.assemble(TINY)
    views = parts.views(IMAGES, parts.views.make_params(0, 0, 5))
    assert [tuple(x.shape) for x in views] == [(2, 5, 1, 8, 8), (1, 5, 1, 6, 6)]
    assert parts.method(views)["Z"].shape == (3, 5, 6)
    assert parts.method.objective.keywords == TINY.hyper
    assert parts.preprocess == recipes.build_preprocess(TINY)
    assert (parts.preprocess.size, parts.preprocess.channels, parts.preprocess.mean) == (8, 1, (0.5,))
    assert parts.method.backbone(parts.preprocess.normalize(IMAGES)).shape == (5, 8)


def test_weights_are_a_function_of_the_seed_and_no_random_state_changes():
    def weights(recipe):
        return recipes.build_method(recipe).state_dict()

    torch.manual_seed(1)
    before, first = torch.get_rng_state(), weights(TINY)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = weights(TINY), weights(replace(TINY, seed=1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["backbone.conv1.weight"], other["backbone.conv1.weight"])
    assert not torch.equal(first["projector.0.weight"], other["projector.0.weight"])


def test_a_custom_transform_changes_the_views(monkeypatch):
    monkeypatch.setattr(recipes.user_code, "_imported", {"mine:invert": lambda x, generator: 1 - x})
    plain = replace(TINY, data=recipes.DataConfig(channels=1, mean=(0.0,), std=(1.0,)))
    usual, inverted = (build_transform(each) for each in (plain, replace(plain, custom_transforms=("mine:invert",))))
    draws = usual.make_params(0, 0, 5)
    torch.testing.assert_close(inverted(IMAGES, draws)[0], 1 - usual(IMAGES, draws)[0])


STREAM = recipes.DataConfig(channels=1, storage="streaming")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"views": (ViewConfig(count=1),)}, "give --views.0.count 2"),
        ({"objective": "vicreg", "hyper": {}}, "takes exactly 2 views, got 3"),
        ({"machine": recipes.MachineConfig(devices=3)}, "give --batch-size a multiple of 3"),
        ({"data": recipes.DataConfig(channels=1, std=(0.0,))}, "expected positive values"),
        ({"data": recipes.DataConfig(channels=1, mean=(0.5, 0.5))}, "--data: mean is (0.5, 0.5), expected 1 values"),
        (
            {"data": recipes.DataConfig(channels=3, mean=(0.5,) * 3, std=(0.5,))},
            "--data: std is (0.5,), expected 3 values",
        ),
        ({"data": replace(STREAM, subset=9)}, "--data.subset"),
        ({"data": STREAM, "probe": recipes.ProbeConfig(epochs=(1.0,))}, "--probe.epochs"),
        ({"objective": "directclr", "hyper": {}, "views": SIZES}, "takes views of one size, got 8 and 6 px"),
        ({"objective": "directclr", "hyper": {}, "views": TWO.views}, "takes the representation"),
        ({"objective": "swav", "hyper": {"full": 3}}, "give --hyper.full 2"),
        ({"objective": "swav", "hyper": {"full": 0}}, "give --hyper.full 2"),
    ],
)
def test_parts_that_do_not_fit_are_an_error_that_names_what_to_change(change, expected):
    with pytest.raises(UserError) as caught:
        recipes.check(replace(TINY, **change))
    assert expected in str(caught.value)


def test_fewer_images_than_a_batch_are_an_error():
    check_num_images(TINY, 8)
    with pytest.raises(UserError, match="set --batch-size 3, or add images"):
        check_num_images(TINY, 7)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_gradient_on_the_small_recipe_with_nothing_but_a_batch_size(objective):
    data = {"data.mean": (0.5,) * 3, "data.std": (0.25,) * 3}
    recipe = recipes.resolve("cifar10-small", {"objective": objective, "batch_size": 64} | data)
    parts = recipes.assemble(recipe)
    recipes.dry_run(parts.method, recipe)
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    total(parts.method.terms(parts.method(parts.views(images, parts.views.make_params(0, 0, 64))))).backward()
    gradient = next(parts.method.backbone.parameters()).grad
    assert gradient.isfinite().all()
    assert gradient.any()


@pytest.mark.parametrize("objective", ["frossl", "simclr", "moco", "swav", "simsiam", "byol", "dino"])
def test_views_of_several_sizes_work(objective):
    recipe = replace(TINY, objective=objective, hyper={}, method={})
    recipes.dry_run(recipes.build_method(recipe), recipe)


KINDS = [kind for kind in get_args(ProjectorConfig.__annotations__["kind"]) if kind != "mlp"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_projector_works_with_a_teacher_too(kind):
    recipe = replace(recipes.with_objective(TWO, "byol"), projector=ProjectorConfig(kind=kind, d0=4, groups=2))
    method, again = recipes.build_method(recipe), recipes.build_method(recipe)
    recipes.dry_run(method, recipe)
    assert recipes.from_dict(recipes.to_dict(recipe)) == recipe
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in method.state_dict().items())
    recipes.build_encoder(recipe).projector.load_state_dict(method.projector.state_dict())  # as `fullrank.load` does


@pytest.mark.parametrize("projector", [ProjectorConfig(kind="sub-vector"), ProjectorConfig(kind="groups", groups=500)])
def test_more_dimensions_than_the_representation_has_are_an_error(projector):
    recipe = replace(TINY, projector=projector)
    with pytest.raises(UserError, match="dimensions; choose 1 to"):
        recipes.dry_run(recipes.build_method(recipe), recipe)
