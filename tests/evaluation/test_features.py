from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fullrank.errors import UserError
from fullrank.evaluation import extract_features, standardize
from fullrank.images import DecodeErrors, MemoryImages, Preprocess, load_images, open_images


class Counts(nn.Module):
    """A network with a buffer that changes at each call, even in eval mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        self.calls += 1
        return images.flatten(1)


@pytest.fixture
def folder_images(tmp_path):
    """Return a folder with twelve colour images of several sizes in two class folders."""
    rng = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / ("cat" if i % 2 else "dog")
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    return tmp_path


def test_features_equal_one_forward_pass_in_eval_mode(digits, preprocess):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout()).train()
    features = extract_features(backbone, digits, preprocess, batch_size=500)
    backbone.eval()
    with torch.no_grad():
        torch.testing.assert_close(features.X, backbone(preprocess.normalize(digits.pixels)))
    assert features.X.dtype == torch.float32
    assert torch.equal(features.labels, digits.labels)
    assert tuple(features.names) == digits.names


def test_a_backbone_that_changes_raises(digits, preprocess):
    with pytest.raises(AssertionError, match="Counts changed"):
        extract_features(Counts(), digits, preprocess)


def test_dimensions_can_be_selected(digits, preprocess):
    whole = extract_features(nn.Flatten(), digits, preprocess).X
    for part in (slice(5), slice(5, None), slice(5, 9), slice(None)):
        assert torch.equal(
            extract_features(nn.Flatten(), digits, preprocess, dimensions=part, batch_size=500).X, whole[:, part]
        )


def test_invalid_dimensions_raise_after_one_batch(digits, preprocess):
    backbone, batches = nn.Flatten(), []
    backbone.register_forward_hook(lambda *_: batches.append(1))
    with pytest.raises(UserError, match=r"^dimensions is 60:65, .*range within 0:64"):
        extract_features(backbone, digits, preprocess, dimensions=slice(60, 65), batch_size=100)
    assert len(batches) == 1


def test_modes_are_restored_and_there_is_no_gradient(digits, preprocess):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5)).train()
    backbone[2].eval()
    extract_features(backbone, digits, preprocess)
    assert [part.training for part in backbone] == [True, True, False]
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_features_can_be_trained_on(digits, preprocess):
    X = extract_features(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), digits, preprocess).X
    assert not X.is_inference()
    assert not X.requires_grad


def test_half_precision_features_become_float32(digits, preprocess):
    class Half(nn.Module):
        def forward(self, images):
            return images.flatten(1).bfloat16()

    assert extract_features(Half(), digits, preprocess).X.dtype == torch.float32


def test_a_source_and_its_copy_in_memory_have_equal_features(folder_images):
    source = open_images(str(folder_images))["all"]
    preprocess = Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3)
    a = extract_features(nn.Flatten(), source, preprocess, batch_size=5)
    b = extract_features(nn.Flatten(), load_images(source, channels=3, size=8), preprocess, batch_size=7)
    assert torch.equal(a.X, b.X)
    assert torch.equal(a.labels, b.labels)
    assert a.names == b.names


def test_images_in_memory_are_preprocessed_like_a_source(digits):
    preprocess = Preprocess(3, 12, (0.5,) * 3, (0.5,) * 3)
    a = extract_features(nn.Flatten(), digits, preprocess)
    b = extract_features(nn.Flatten(), open_images("digits")["all"], preprocess)
    assert torch.equal(a.X, b.X)


def test_unreadable_images_are_left_out_and_recorded(folder_images):
    (folder_images / "cat" / "99.png").write_text("no image")
    decode_errors = DecodeErrors()
    features = extract_features(
        nn.Flatten(),
        open_images(str(folder_images))["all"],
        Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3),
        decode_errors=decode_errors,
    )
    assert len(features.X) == 12
    assert [name.endswith("99.png") for name in decode_errors.reasons] == [True]


def test_a_source_without_readable_images_is_a_user_error(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(UserError, match="none of the 1 images can be read"):
        extract_features(
            nn.Flatten(),
            open_images(str(tmp_path))["all"],
            Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3),
            decode_errors=DecodeErrors(max_error_fraction=1.0),
        )


def test_standardised_training_features_have_mean_zero_and_variance_one(clusters):
    X, _, X_test, _ = clusters
    Y, Y_test = standardize(3 + 5 * X, 3 + 5 * X_test)
    torch.testing.assert_close(Y.mean(0), torch.zeros(10, dtype=torch.float64))
    torch.testing.assert_close(Y.var(0, correction=0), torch.ones(10, dtype=torch.float64))
    torch.testing.assert_close(Y_test, (X_test - X.mean(0)) / X.std(0, correction=0))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 3.3e-30])
def test_a_constant_column_is_zero_everywhere(value):
    X = torch.randn(1001, 2, generator=torch.Generator().manual_seed(0))
    X[:, 0] = value
    for Y in standardize(X, X + 1):
        assert torch.equal(Y[:, 0], torch.zeros(1001))
    assert standardize(X)[0][:, 1].std() > 0.9


def test_a_column_that_varies_only_by_rounding_is_zero():
    X = torch.where(torch.arange(100) % 2 == 0, 1.0, 1.0 + torch.finfo(torch.float32).eps)[:, None]
    assert torch.equal(standardize(X)[0], torch.zeros(100, 1))


def test_a_column_of_tiny_scale_is_standardised():
    X = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) * 1e-20
    assert standardize(X)[0].std() > 0.9


def test_fewer_images_than_a_batch_work(digits, preprocess):
    one = replace(
        digits, pixels=digits.pixels[:1], labels=digits.labels[:1], names=digits.names[:1], groups=digits.groups[:1]
    )
    assert isinstance(one, MemoryImages)
    assert extract_features(nn.Flatten(), one, preprocess).X.shape == (1, 64)
