from dataclasses import replace
from typing import get_args

import pytest
import torch

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import (
    RECIPES,
    DataConfig,
    MachineConfig,
    Recipe,
    assemble,
    build_encoder,
    build_method,
    build_preprocess,
    check,
    check_num_images,
    dry_run,
    from_dict,
    to_dict,
    with_objective,
)
from fullrank.views import ViewConfig

TINY = Recipe(
    data=DataConfig(channels=1, mean=(0.5,), std=(0.25,)),
    views=(ViewConfig(count=2, size=8), ViewConfig(count=1, size=6)),
    backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
    projector=ProjectorConfig(widths=(16, 6)),
    hyper={"invariance": 2.0},
    batch_size=8,
)


def weights(recipe):
    return build_method(recipe).state_dict()


def test_the_parts_have_matching_shapes():
    parts = assemble(TINY)
    images = torch.randint(0, 256, (5, 1, 10, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = parts.views(images, parts.views.make_params(0, 0, 5))
    assert [tuple(x.shape) for x in views] == [(2, 5, 1, 8, 8), (1, 5, 1, 6, 6)]
    embeddings = parts.method(views)
    assert embeddings["Z"].shape == (3, 5, 6)
    assert parts.method.objective.keywords == TINY.hyper
    assert parts.preprocess == build_preprocess(TINY)
    assert parts.method.backbone(parts.preprocess.normalize(images)).shape == (5, 8)


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(1)
    first = weights(TINY)
    torch.manual_seed(2)
    second, other = weights(TINY), weights(replace(TINY, seed=1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["backbone.conv1.weight"], other["backbone.conv1.weight"])
    assert not torch.equal(first["projector.0.weight"], other["projector.0.weight"])


def test_the_global_random_state_is_unchanged():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assemble(TINY)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_random_state_of_the_gpu_is_unchanged():
    torch.cuda.manual_seed(1)
    before = torch.cuda.get_rng_state()
    assemble(TINY)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_preprocessing_has_the_size_of_the_largest_view_and_the_normalisation():
    preprocess = build_preprocess(TINY)
    assert (preprocess.size, preprocess.channels, preprocess.mean, preprocess.std) == (8, 1, (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (DataConfig(channels=3, mean=(0.5,), std=(0.5,) * 3), "data.mean has 1 values, expected 3"),
        (DataConfig(channels=3, mean=(0.5,) * 3), "data.std has 0 values, expected 3"),
        (
            DataConfig(channels=2, mean=(0.5,) * 2, std=(0.5, 0.0)),
            r"data.std is \(0.5, 0.0\), expected positive values",
        ),
    ],
)
def test_statistics_must_match_the_channels(data, expected):
    with pytest.raises(UserError, match=expected):
        build_preprocess(replace(TINY, data=data))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"views": (ViewConfig(count=1),)},
            "the number of views per image is 1, expected at least 2; give --views.0.count 2",
        ),
        (
            {"objective": "vicreg", "hyper": {}},
            "objective 'vicreg' takes exactly 2 views, got 3; change --views.0.count, or use frossl",
        ),
        ({"objective": "barlow_twins", "hyper": {}}, "objective 'barlow_twins' takes exactly 2 views, got 3"),
        (
            {"machine": MachineConfig(devices=3)},
            "a batch of 8 is not divisible by 3 devices; give --batch_size a multiple of 3",
        ),
        ({"data": DataConfig(channels=1, std=(0.0,))}, r"data.std is \(0.0,\), expected positive values"),
        ({"data": DataConfig(channels=1, mean=(0.5, 0.5))}, "data.mean has 2 values, expected 1"),
    ],
)
def test_the_error_of_an_invalid_recipe_names_what_to_change(change, expected):
    with pytest.raises(UserError, match=f"^{expected}") as caught:
        check(replace(TINY, **change))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=expected):
        assemble(replace(TINY, **change))


@pytest.mark.parametrize(("images", "suggested"), [(7, 3), (1, 2)])
def test_fewer_images_than_a_batch_are_an_error(images, suggested):
    expected = (
        f"^batch_size is 8, but there are only {images} training images; set --batch_size {suggested}, or add images$"
    )
    with pytest.raises(UserError, match=expected):
        check_num_images(TINY, images)


@pytest.mark.parametrize("images", [8, 9])
def test_a_batch_of_images_is_enough(images):
    check_num_images(TINY, images)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_views_are_enough_for_every_objective(objective):
    check(replace(with_objective(TINY, objective), views=(ViewConfig(count=2),)))


def test_an_objective_that_takes_representations_needs_views_of_one_size():
    views = (ViewConfig(count=1, size=8), ViewConfig(count=1, size=6))
    with pytest.raises(UserError, match="takes views of one size, got 8 and 6 px"):
        check(replace(TINY, views=views, objective="directclr", hyper={}, method={}))


@pytest.mark.parametrize(
    ("projector", "remedy"),
    [
        (ProjectorConfig(), "give --projector.widths no value"),
        (
            ProjectorConfig(kind="sub-vector", widths=()),
            "give --projector.kind mlp and give --projector.widths no value",
        ),
        (ProjectorConfig(kind="groups"), "give --projector.kind mlp and give --projector.widths no value"),
    ],
)
def test_an_objective_that_takes_representations_allows_no_projector_of_any_kind(projector, remedy):
    recipe = replace(
        TINY, views=(ViewConfig(count=2),), objective="directclr", hyper={}, method={}, projector=projector
    )
    with pytest.raises(
        UserError, match=rf"^objective 'directclr' takes the representation, not the embedding; {remedy}$"
    ):
        check(recipe)
    check(with_objective(recipe, "directclr"))


KINDS = [kind for kind in get_args(ProjectorConfig.__annotations__["kind"]) if kind != "mlp"]


@pytest.mark.parametrize("objective", ["frossl", "simclr", "moco", "swav", "byol", "corinfomax_batch", "tico"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_projector_works_with_every_kind_of_method(kind, objective):
    recipe = replace(
        with_objective(TINY, objective),
        views=(ViewConfig(count=2, size=8),),
        projector=ProjectorConfig(kind=kind, d0=4, groups=2),
    )
    check(recipe)
    method = build_method(recipe)
    dry_run(method, recipe)
    assert from_dict(to_dict(recipe)) == recipe
    again = build_method(recipe)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in method.state_dict().items())
    encoder = build_encoder(recipe)
    encoder.projector.load_state_dict(method.projector.state_dict())  # as `fullrank.load` does


@pytest.mark.parametrize(
    ("projector", "expected"),
    [
        (
            ProjectorConfig(kind="sub-vector"),
            "projector.d0 is 360, but representations have [0-9]+ dimensions; choose 1 to",
        ),
        (
            ProjectorConfig(kind="groups", groups=500),
            "projector.groups is 500, but there are [0-9]+ dimensions; choose 1 to [0-9]+ groups",
        ),
    ],
)
def test_more_dimensions_than_the_representation_has_are_an_error(projector, expected):
    recipe = replace(TINY, projector=projector)
    with pytest.raises(UserError, match=f"^{expected}"):
        dry_run(build_method(recipe), recipe)


def test_random_projectors_are_a_function_of_the_seed():
    def dropped(seed):
        method = build_method(replace(TINY, seed=seed, projector=ProjectorConfig(kind="dropout", d0=4)))
        method.before_step(3)
        return method.projector[0].dropped

    assert torch.equal(dropped(1), dropped(1))
    assert not torch.equal(dropped(1), dropped(2))


def test_codes_use_only_views_of_full_size():
    with pytest.raises(UserError, match=r"^hyper.full.* is 3, .*; give --hyper.full 2$"):
        check(replace(TINY, objective="swav", hyper={"full": 3}, method={}))


@pytest.mark.parametrize("objective", ["frossl", "simclr", "moco", "swav", "simsiam", "byol", "dino"])
def test_views_of_several_sizes_work(objective):
    recipe = replace(TINY, objective=objective, hyper={}, method={})
    dry_run(build_method(recipe), recipe)


def test_an_unknown_backbone_is_an_error():
    with pytest.raises(UserError, match="unknown backbone 'resnet81'"):
        assemble(replace(TINY, backbone=BackboneConfig(name="resnet81")))


def test_the_digits_recipe_is_deterministic():
    recipe = replace(RECIPES["digits"], data=replace(RECIPES["digits"].data, mean=(0.3,), std=(0.3,)))
    a, b = assemble(recipe).method.state_dict(), assemble(recipe).method.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
