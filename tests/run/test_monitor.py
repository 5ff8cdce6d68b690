from copy import deepcopy

import pytest
import torch
from rich.console import Console
from torch import nn

import fullrank
from fullrank.images import MemoryImages, Preprocess, open_images
from fullrank.methods import BackboneConfig, JointEmbedding, ProjectorConfig, build_projector
from fullrank.methods.backbones import build_backbone
from fullrank.objectives import frossl, total
from fullrank.run import monitor
from fullrank.run.monitor import evaluate_spectra, evaluate_views, variance_within_views, view_deviations
from fullrank.run.rows import SpectrumMetrics
from fullrank.seeding import mix
from fullrank.spectrum import Spectrum
from fullrank.views import MultiViewTransform, ViewConfig

PREPROCESS = Preprocess(channels=1, size=8, mean=(0.5,), std=(0.25,))
N = 24
PIXELS = torch.randint(0, 256, (70, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def trained():
    """A method with BatchNorm statistics, dropout, and one layer in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arguments = {"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1], "drop_rate": 0.5}
        backbone = build_backbone(BackboneConfig(arguments=arguments, stem="small"), channels=1)
        method = JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(12, 6)), 16), frossl)
        for _ in range(3):
            method([torch.randn(2, 16, 1, 8, 8)])
    method.backbone.bn1.eval()
    return method


def make_transform(*custom_transforms, configs=None):
    options = {"mean": (0.5,), "std": (0.25,), "channels": 1, "custom_transforms": custom_transforms}
    return MultiViewTransform(configs or ViewConfig(size=8), **options)


def evaluate(method, transform=None, *, pixels=PIXELS, with_loss=True, seed=3):
    images = MemoryImages(pixels, pixels.new_zeros(len(pixels)).long(), ("",) * len(pixels))
    return evaluate_views(method, images, transform or make_transform(), seed=seed, batch_size=N, with_loss=with_loss)


@pytest.mark.parametrize(("count", "batch"), [(70, 7), (70, 512), (10, 4)])  # 10 images are fewer than dimensions
def test_batches_give_the_spectra_of_all_images(trained, count, batch):
    spectra, features = evaluate_spectra(trained, PIXELS[:count], PREPROCESS, batch_size=batch)
    copy = deepcopy(trained).eval()
    with torch.no_grad():
        R = copy.backbone(PREPROCESS.normalize(PIXELS[:count]))
        Z = copy.projector(R)
    torch.testing.assert_close(features, R)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert evaluate_spectra(trained, PIXELS, PREPROCESS)[1].dtype == torch.float32
    for name, whole in (("backbone", R), ("projector", Z)):
        expected = Spectrum.from_embeddings(whole).eigenvalues
        assert (spectra[name].n, spectra[name].D) == (count, whole.shape[1])
        torch.testing.assert_close(spectra[name].eigenvalues, expected, rtol=1e-4, atol=1e-6 * expected[0].item())


def test_nothing_that_is_trained_and_no_random_state_changes(trained):
    before, state = deepcopy(trained), torch.get_rng_state()
    evaluate_spectra(trained, PIXELS, PREPROCESS)
    first = evaluate(trained)
    assert evaluate(trained) == first  # the same images and augmentation again
    assert evaluate(trained, seed=4) != first
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in trained.modules()] == [part.training for part in before.modules()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in trained.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.parameters())


def test_metrics_are_those_of_the_spectrum():
    spectrum = Spectrum.from_eigenvalues(torch.tensor([4.0, 2.0, 0.0]), n=100)
    metrics = SpectrumMetrics.from_spectrum(spectrum)
    assert (metrics.effective_rank, metrics.entropy) == (spectrum.effective_rank(), spectrum.entropy())
    assert (metrics.collapsed_dimensions, metrics.dimensions, metrics.samples) == (1, 3, 100)
    assert metrics.condition_number is metrics.relative_variance is None  # infinite, unknown


def test_the_variance_within_views_ignores_the_difference_between_views():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(2, 1, 5, generator=generator)
    assert variance_within_views(means.expand(2, 40, 5)) < 1e-13
    assert variance_within_views(torch.randn(1, 4000, 5, generator=generator)) == pytest.approx(1, abs=0.01)


def test_the_loss_is_that_of_the_objective_on_views_of_random_images_in_any_parts(trained, monkeypatch):
    transform, method = make_transform(), deepcopy(trained).eval()
    chosen = PIXELS[torch.randperm(len(PIXELS), generator=torch.Generator().manual_seed(3))[:N]]
    views = transform(chosen, transform.make_params(mix(3, monitor.HELD_OUT_STREAM), 0, N))
    with torch.no_grad():
        expected = total(method.terms(method(views))).item()
    assert evaluate(trained)["held_out_loss"] == expected
    monkeypatch.setattr(monitor, "CHUNK", 7)
    assert evaluate(trained)["held_out_loss"] == pytest.approx(expected, rel=1e-5)
    configs = (ViewConfig(size=8), ViewConfig(size=4, count=3))
    assert evaluate(trained, make_transform(configs=configs))["held_out_loss"] is not None


def test_a_loss_that_is_refused_or_not_finite_is_not_reported(trained):
    method = deepcopy(trained)

    def refuse(Z):
        raise ValueError("too few images")

    method.objective = refuse
    assert evaluate(method, pixels=PIXELS[:10])["held_out_loss"] is None
    with pytest.raises(ValueError, match="too few"):
        evaluate(method)
    method = deepcopy(trained)
    nn.init.constant_(method.projector[0].weight, float("nan"))
    assert evaluate(method)["held_out_loss"] is None


@pytest.mark.parametrize(
    ("transform", "over_images", "over_pixels"),
    [
        (lambda x, generator: x, True, True),
        (lambda x, generator: torch.linspace(0, 1, x.shape[-1]).expand_as(x).clone(), False, True),  # one picture
        (lambda x, generator: x.mean((-2, -1), keepdim=True).expand_as(x).clone(), True, False),  # the mean colour
        (lambda x, generator: torch.cat([x[:1], x[1:] * 0]), False, False),  # only the second view
    ],
)
def test_views_without_variance_have_no_deviation(trained, transform, over_images, over_pixels):
    found = evaluate(trained, make_transform(transform), with_loss=False)
    assert found["held_out_loss"] is None
    assert (found["image_deviation"] > 1e-3, found["pixel_deviation"] > 1e-3) == (over_images, over_pixels)
    assert view_deviations([torch.randn(2, 1, 1, 8, 8)])[0] is None  # a single image


def test_the_first_and_the_last_spectrum_use_training_images_too_if_few_are_held_out(small, tmp_path):
    few = {"out": tmp_path / "run", "console": Console(quiet=True), "epochs": 1, "projector": (256,)}
    run = fullrank.pretrain(small, **few)  # 2,560 images would be enough
    first, *between, last = run.metrics.spectrum
    assert [row.full_train_images for row in (first, *between[:1], last)] == [1438, None, 1438]
    assert run.spectra.samples.tolist() == [1797, *(100 for _ in run.metrics.spectrum), 1797]
    assert run.spectra.comparable().steps.tolist() == [row.step for row in run.metrics.spectrum]
    for part, spectrum in fullrank.measure_spectrum(run, open_images("digits")["all"]).items():
        assert last.full_metrics(part).effective_rank == pytest.approx(spectrum.effective_rank(), rel=1e-4)
