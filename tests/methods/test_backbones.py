"""Backbones from timm, and our changes to ResNets."""

import pytest
import torch
import tyro
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, at_size, build_backbone, feature_dim, freeze
from fullrank.methods.backbones import has_plain_stem

NARROW = {"channels": [8, 8, 16, 24], "layers": [1, 1, 1, 1]}
NETWORKS = {
    "a residual network": BackboneConfig(name="resnet18"),
    "a narrow one": BackboneConfig(name="resnet18", arguments=NARROW, stem="small"),
    "bottlenecks, whose output is wider": BackboneConfig(
        name="resnet26", arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}
    ),
    "a transformer": BackboneConfig(
        name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 2}
    ),
    "a transformer that averages": BackboneConfig(
        name="vit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, "depth": 1, "global_pool": "avg"}
    ),
    "a layer behind the pooling": BackboneConfig(name="mobilenetv3_small_050"),
    "BatchNorm with activation": BackboneConfig(name="test_efficientnet"),
    "LayerNorm": BackboneConfig(name="test_convnext"),
    "no norm at all": BackboneConfig(name="test_nfnet"),
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS.keys())
def config(request):
    return request.param


def test_features_are_pooled_and_have_feature_dim_dimensions(config):
    network = build_backbone(config).eval()
    with torch.no_grad():
        assert network(torch.randn(2, 3, 32, 32)).shape == (2, feature_dim(network))


def test_building_does_not_change_batch_norm_statistics(config):
    for layer in build_backbone(config).modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            assert layer.num_batches_tracked == 0
            assert (layer.running_mean == 0).all()
            assert (layer.running_var == 1).all()


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("stem", ["standard", "small"])
def test_any_number_of_channels(channels, stem):
    network = build_backbone(BackboneConfig(arguments=NARROW, stem=stem), channels=channels)
    assert network(torch.randn(2, channels, 32, 32)).shape == (2, 24)


@pytest.mark.parametrize("name", ["resnet18", "seresnet18", "resnetblur18"])
def test_the_small_stem_is_one_convolution_without_pooling(name):
    network = build_backbone(BackboneConfig(name=name, stem="small"))
    assert (network.conv1.kernel_size, network.conv1.stride, network.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(network.maxpool, nn.Identity)


@pytest.mark.parametrize("size", [32, 28, 8])
def test_the_small_stem_keeps_the_size_of_the_map(size):
    network = build_backbone(BackboneConfig(arguments=NARROW, stem="small"))
    x = network.maxpool(network.act1(network.bn1(network.conv1(torch.randn(2, 3, size, size)))))
    assert x.shape == (2, 64, size, size)
    assert network.layer1(x).shape[-2:] == (size, size)


def test_the_small_stem_has_timms_initialisation():
    weight = build_backbone(BackboneConfig(stem="small")).conv1.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)  # He et al. 2015, fan-out


def test_the_network_equals_timms():
    import timm

    torch.manual_seed(0)
    ours = build_backbone(BackboneConfig(arguments=NARROW)).state_dict()
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=0, **NARROW).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(
        UserError, match=r"unknown backbone 'resnet81'; choose a timm model .*; did you mean 'resnet\w*18\w*'\?"
    ):
        build_backbone(BackboneConfig(name="resnet81"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet18", {"colour": 1}),
        ("resnet18", {"channels": 3}),
        ("resnet18", {"act_layer": "no_such_layer"}),
        ("resnet18", {"block": "BasicBlock"}),
        ("resnet18", {"global_pool": "no_such_pooling"}),
        ("vit_tiny_patch16_224", {"patch_size": 0}),
        ("vit_tiny_patch16_224", {"img_size": "large"}),
        ("vit_tiny_patch16_224", {"embed_dim": -4}),
    ],
)
def test_an_invalid_timm_argument_gives_a_one_line_error(name, arguments):
    with pytest.raises(
        UserError, match=rf"^backbone '{name}' cannot be built with .* \(\w+: .*\); fix backbone.arguments$"
    ) as caught:
        build_backbone(BackboneConfig(name=name, arguments=arguments))
    assert str(arguments) in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            {"pretrained": True},
            {"checkpoint_path": "evil.pth"},
            {"cache_dir": "x"},
            {"pretrained_cfg": {"file": "evil.pth"}},
        ),
        *(
            {"pretrained_cfg_overlay": {"url": "x"}},
            {"pretrained_strict": False},
            {"pretrained_model_args": {}},
            {"pretrained_custom": 1},
        ),
        *(
            {"scriptable": True},
            {"exportable": True},
            {"no_jit": True},
            {"device": "meta"},
            {"num_classes": 10},
            {"in_chans": 1},
        ),
        *(
            {"hf_hub_id": "a"},
            {"weights": "a"},
            {"url": "a"},
            {"file": "a"},
            {"kwargs_filter": ["a"]},
            {"model_cfg": {}},
        ),
    ],
    ids=str,
)
def test_arguments_cannot_load_files_or_change_settings(arguments):
    with pytest.raises(UserError, match=f"'{next(iter(arguments))}' is not an argument of an architecture"):
        BackboneConfig(arguments=arguments)


@pytest.mark.parametrize(
    "word", ["../x.pth", "/etc/passwd", "a.b:c", "http://x", "torch.nn.GELU", "a" * 50, "\0", "a b", "os:system"]
)
def test_words_in_arguments_name_no_file_and_no_code(word):
    for value in (word, [word], [["gelu", word]], {"layer": word}):
        with pytest.raises(UserError, match="expected a word"):
            BackboneConfig(arguments={"act_layer": value})


@pytest.mark.parametrize(
    "name",
    [
        "hf-hub:timm/resnet18",
        "local-dir:/tmp/x",
        "./resnet18",
        "resnet18\0",
        "",
        "hf-hub:resnet18.a1",
        "resnet18:x",
        "resnet18\n",
    ],
)
def test_only_plain_names_of_networks_are_taken(name):
    with pytest.raises(UserError, match=r"backbone.name.*list_models"):
        BackboneConfig(name=name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"drop_rate": 2},
        {"drop_path_rate": -0.1},
        {"proj_drop_rate": 1.5},
        {"channels": [10**9] * 4},
        {"drop_rate": float("nan")},
    ],
)
def test_numbers_in_arguments_have_bounds(arguments):
    with pytest.raises(UserError, match=r"backbone\.arguments"):
        BackboneConfig(arguments=arguments)


@pytest.mark.parametrize("arguments", [{"features_only": True}, {"global_pool": ""}])
def test_a_network_without_pooling_raises(arguments):
    with pytest.raises(UserError, match="remove the pooling"):
        build_backbone(BackboneConfig(arguments=arguments))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mobilenetv3_small_050", "resnet50d"])
def test_the_small_stem_of_another_network_raises(name):
    with pytest.raises(UserError, match=f"plain ResNets, got backbone '{name}'"):
        build_backbone(BackboneConfig(name=name, stem="small"))


def test_arguments_are_json_on_the_command_line():
    config = tyro.cli(
        BackboneConfig, args=["--name", "resnet26", "--arguments", '{"channels": [8, 8], "drop_path_rate": 0.1}']
    )
    assert config == BackboneConfig(name="resnet26", arguments={"channels": [8, 8], "drop_path_rate": 0.1})


BASIC = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 2]}


@pytest.mark.parametrize("name", ["resnet18", "resnet26"])
@pytest.mark.parametrize("layers", [[1, 1, 1, 1], [1, 1, 1, 2]], ids=["strided", "identity"])
def test_the_last_shortcut_can_be_removed(name, layers):
    """The representation is then the pooled output of the block's convolutional layers."""
    network = build_backbone(
        BackboneConfig(name=name, arguments=BASIC | {"layers": layers}, stem="small", last_residual=False)
    ).eval()
    inputs, x = [], torch.randn(2, 3, 16, 16)
    block = network.layer4[-1]
    block.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        R = network(x)
        h = inputs[0]
        h = block.act1(block.bn1(block.conv1(h)))
        h = block.bn2(block.conv2(h))
        if name == "resnet26":
            h = block.bn3(block.conv3(block.act2(h)))
    torch.testing.assert_close(R, h.relu().mean((2, 3)))
    assert (R > 0).any()  # timm initialises the last BatchNorm of a block at zero
    assert R.shape == (2, feature_dim(network))


def test_removing_the_last_shortcut_changes_no_other_block():
    def weights(last_residual):
        torch.manual_seed(0)
        return build_backbone(BackboneConfig(arguments=BASIC, last_residual=last_residual)).state_dict()

    whole, without = weights(True), weights(False)
    assert whole.keys() == without.keys()
    assert [name for name in whole if not torch.equal(whole[name], without[name])] == ["layer4.1.bn2.weight"]


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_only_a_resnet_has_a_last_shortcut(name):
    with pytest.raises(
        UserError, match=f"^the last residual block is defined only for timm's ResNets, got backbone '{name}'"
    ):
        build_backbone(BackboneConfig(name=name, last_residual=False))


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "test_vit", "swin_tiny_patch4_window7_224", "levit_128s", "resnet18", "test_convnext"],
)
@pytest.mark.parametrize("sizes", [(48,), (64, 32)])
def test_networks_that_are_built_for_one_size_are_built_for_the_views(name, sizes):
    config = at_size(BackboneConfig(name=name), sizes)
    with torch.device("meta"):
        network = build_backbone(config)
    several = len(sizes) > 1 and name in (
        "levit_128s",
        "swin_tiny_patch4_window7_224",
    )  # these have no position embeddings to interpolate
    for size in sizes[: 1 if several else None]:
        assert network.eval()(torch.zeros(2, 3, size, size, device="meta")).shape == (2, feature_dim(network))


def test_given_arguments_win_over_the_size_of_the_views():
    config = BackboneConfig(name="test_vit", arguments={"img_size": 32})
    assert at_size(config, [96]) == config
    assert at_size(BackboneConfig(name="resnet18"), [96]) == BackboneConfig(name="resnet18")


def test_plain_stems_are_those_that_the_small_stem_can_replace():
    for name in ("resnet18", "resnet50", "resnext50_32x4d"):
        assert has_plain_stem(name)
        with torch.device("meta"):
            build_backbone(BackboneConfig(name=name, stem="small"))
    for name in ("resnet18d", "resnet10t", "resnetv2_50", "test_resnet", "vit_tiny_patch16_224", "no such network"):
        assert not has_plain_stem(name)


def test_a_registered_network_names_its_number_of_features():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    with pytest.raises(UserError, match="num_features"):
        feature_dim(network)
    network.num_features = 3
    assert feature_dim(network) == 3


def test_frozen_parts_have_no_gradient_and_others_have_one():
    network = build_backbone(BackboneConfig(name="test_vit"))
    freeze(network, ["patch_embed", "blocks.0"])
    network(torch.rand(2, 3, 160, 160)).sum().backward()
    frozen = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert frozen == {name for name, _ in network.named_parameters() if name.startswith(("patch_embed.", "blocks.0."))}
    with pytest.raises(UserError, match=r"has no such weights, only .*did you mean 'patch_embed'\?"):
        freeze(network, ["patch_embedding"])
    with pytest.raises(UserError, match="freezes the whole backbone"):
        freeze(network, [name for name, _ in network.named_parameters()])
