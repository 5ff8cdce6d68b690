from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fullrank import measure_spectrum
from fullrank.evaluation import extract_features
from fullrank.images import Preprocess, open_images
from fullrank.spectrum import Spectrum


@pytest.fixture
def model():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
    projector = nn.Sequential(nn.Linear(12, 20)).eval()
    return SimpleNamespace(backbone=backbone, projector=projector, preprocess=Preprocess(1, 8, (0.5,), (0.5,)))


def test_the_spectra_are_those_of_all_images(model):
    digits = open_images("digits")["all"]
    spectra = measure_spectrum(model, digits, batch_size=100)
    R = extract_features(model.backbone, digits, model.preprocess).X
    with torch.no_grad():
        expected = {"backbone": Spectrum.from_embeddings(R), "projector": Spectrum.from_embeddings(model.projector(R))}
    assert list(spectra) == list(expected)
    for location, spectrum in spectra.items():
        assert spectrum.n == len(digits)
        torch.testing.assert_close(spectrum.eigenvalues, expected[location].eigenvalues, rtol=1e-5, atol=1e-6)
    assert model.backbone.training
    assert int(model.backbone[2].num_batches_tracked) == 0


@pytest.mark.parametrize("projector", [None, nn.Sequential()])
def test_without_a_projector_there_is_one_spectrum(model, projector):
    model.projector = projector
    assert list(measure_spectrum(model, open_images("digits")["all"])) == ["backbone"]
