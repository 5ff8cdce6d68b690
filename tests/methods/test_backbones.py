"""Backbones from timm, and our changes to ResNets."""

import pytest
import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import at_size, build_backbone, feature_dim, freeze

NARROW = {"channels": [8, 8, 16, 24], "layers": [1, 1, 1, 1]}
VIT = {"img_size": 32, "patch_size": 4, "depth": 2}
NETWORKS = {
    "a residual network": BackboneConfig(name="resnet18"),
    "a narrow one": BackboneConfig(name="resnet18", arguments=NARROW, stem="small"),
    "bottlenecks, whose output is wider": BackboneConfig(name="resnet26", arguments=NARROW),
    "a transformer": BackboneConfig(name="vit_tiny_patch16_224", arguments=VIT),
    "one that averages": BackboneConfig(name="vit_tiny_patch16_224", arguments=VIT | {"global_pool": "avg"}),
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


def test_a_network_of_absurd_size_is_refused_before_anything_is_allocated():
    absurd = BackboneConfig(name="resnet18", arguments={"channels": [65536] * 4})
    with pytest.raises(UserError, match=r"cannot be built .* billion parameters"):
        build_backbone(absurd)


def test_building_does_not_change_batch_norm_statistics(config):
    for layer in build_backbone(config).modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            assert layer.num_batches_tracked == 0
            assert (layer.running_mean == 0).all()
            assert (layer.running_var == 1).all()


@pytest.mark.parametrize("name", ["resnet18", "seresnet18", "resnetblur18"])
def test_the_small_stem_is_one_convolution_without_pooling(name):
    network = build_backbone(BackboneConfig(name=name, stem="small"))
    assert (network.conv1.kernel_size, network.conv1.stride, network.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(network.maxpool, nn.Identity)


def test_the_network_equals_timms():
    import timm

    torch.manual_seed(0)
    ours = build_backbone(BackboneConfig(arguments=NARROW)).state_dict()
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=0, **NARROW).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


FORBIDDEN = "pretrained checkpoint_path cache_dir pretrained_cfg pretrained_cfg_overlay pretrained_strict scriptable"
FORBIDDEN += " no_jit pretrained_model_args pretrained_custom exportable device num_classes in_chans hf_hub_id weights"


@pytest.mark.parametrize("name", [*FORBIDDEN.split(), "url", "file", "kwargs_filter", "model_cfg"])
@pytest.mark.parametrize("value", [True, "a", {"file": "evil.pth"}], ids=str)
def test_arguments_cannot_load_files_or_change_settings(name, value):
    with pytest.raises(UserError, match=f"'{name}' is not an argument of an architecture"):
        BackboneConfig(arguments={name: value})


BASIC = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 2]}


@pytest.mark.parametrize("name", ["resnet18", "resnet26"])
@pytest.mark.parametrize("layers", [[1, 1, 1, 1], [1, 1, 1, 2]], ids=["strided", "identity"])
def test_the_last_shortcut_can_be_removed(name, layers):
    """The representation is then the pooled output of the block's convolutional layers."""
    arguments = BASIC | {"layers": layers}
    network = build_backbone(BackboneConfig(name=name, arguments=arguments, stem="small", last_residual=False)).eval()
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


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "test_vit", "swin_tiny_patch4_window7_224", "levit_128s", "resnet18", "test_convnext"],
)
@pytest.mark.parametrize("sizes", [(48,), (64, 32)])
def test_networks_that_are_built_for_one_size_are_built_for_the_views(name, sizes):
    config = at_size(BackboneConfig(name=name), sizes)
    with torch.device("meta"):
        network = build_backbone(config)
    # These have no position embeddings to interpolate.
    several = len(sizes) > 1 and name in ("levit_128s", "swin_tiny_patch4_window7_224")
    for size in sizes[: 1 if several else None]:
        assert network.eval()(torch.zeros(2, 3, size, size, device="meta")).shape == (2, feature_dim(network))


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
