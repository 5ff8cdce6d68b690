import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fullrank.views.transform as module
from fullrank.errors import UserError
from fullrank.views import BlurConfig, CropConfig, JitterConfig, MultiViewTransform, NoiseConfig, ViewConfig, each_view
from fullrank.views.color import adjust_hue_, blend_, solarize_
from fullrank.views.config import AffineConfig, SolarizeConfig
from fullrank.views.filters import gaussian_blur, gaussian_noise_, normalize_
from fullrank.views.geometry import crop_boxes, resized_crop, warp
from fullrank.views.operations import JITTER_ORDERS

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
EVERYTHING = ViewConfig(
    count=2, size=20, crop=CropConfig(probability=0.8, scale=(0.2, 1.0)), quarter_turns=0.5, flip=0.5,
    affine=AffineConfig(probability=0.6, degrees=40.0, translate=(0.2, 0.1), scale=(0.8, 1.3), shear=(15.0, 10.0)),
    jitter=JitterConfig(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.3), grayscale=0.3, vertical_flip=0.3,
    blur=BlurConfig(probability=0.6, sigma=(0.3, 2.0)), solarize=SolarizeConfig(probability=0.4, threshold=0.6),
)  # fmt: skip
PLAIN = ViewConfig(flip=0.0, jitter=JitterConfig(probability=0.0), grayscale=0.0)


def pictures(n=12, channels=3, height=32, width=32, seed=0):
    """Return images with smooth random colours."""
    x = torch.rand(n, channels, 6, 6, generator=torch.Generator().manual_seed(seed))
    x = torch.nn.functional.interpolate(x, size=(height, width), mode="bicubic").clamp(0, 1)
    return x.mul(255).round().to(torch.uint8)


def make(*configs, channels=3, **options):
    mean = MEAN[:channels] if channels < 4 else (0.5,) * channels
    return MultiViewTransform(configs, mean=mean, std=(0.25,) * channels, channels=channels, **options)


def crop_image(views, image, params):
    """Return the crops of one image (C, H, W)."""
    return views.crop_image(image.permute(1, 2, 0), views.get_crop_boxes(params, *image.shape[1:]), params)


def by_torchvision(image, config, params, v, i):
    """Compute one view with torchvision's functions from the same uniform numbers."""

    def u(name):
        return params[name][v, i].item()

    def between(name, low, high):
        return low + u(name) * (high - low)

    top, left, h, w = crop_boxes(params, [config] * config.count, *image.shape[-2:])[v, i].tolist()
    x = F.resized_crop(image.float() / 255, top, left, h, w, [config.size] * 2, antialias=True)
    a = config.affine
    if u("affine") < a.probability:
        most = [t * config.size for t in a.translate]
        shift = [round(between(f"translate_{k}", -t, t)) for k, t in zip("xy", most, strict=True)]
        shear = [between(f"shear_{k}", -s, s) for k, s in zip("xy", a.shear, strict=True)]
        angle, scale = between("angle", -a.degrees, a.degrees), between("scale", *a.scale)
        x = F.affine(x, angle, shift, scale, shear, interpolation=v2.InterpolationMode.BILINEAR)
    if u("rotate") < config.quarter_turns:
        x = torch.rot90(x, 1 + int(3 * u("quarter_turns")), dims=(-2, -1))
    x = F.horizontal_flip(x) if u("flip") < config.flip else x
    x = F.vertical_flip(x) if u("vertical_flip") < config.vertical_flip else x
    if u("jitter") < config.jitter.probability:
        for k in JITTER_ORDERS[int(24 * u("jitter_order"))]:
            name = ("brightness", "contrast", "saturation", "hue")[k]
            most = getattr(config.jitter, name)
            low, high = (-most, most) if name == "hue" else (1 - most, 1 + most)
            x = getattr(F, f"adjust_{name}")(x, between(name, low, high))
    x = F.rgb_to_grayscale(x, num_output_channels=3) if u("grayscale") < config.grayscale else x
    if u("blur") < config.blur.probability:
        x = F.gaussian_blur(x, [2 * 8 + 1] * 2, [between("sigma", *config.blur.sigma)] * 2)
    return F.solarize(x, config.solarize.threshold) if u("solarize") < config.solarize.probability else x


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40)])
def test_views_equal_torchvision_step_by_step(height, width):
    images = pictures(24, height=height, width=width)
    views = MultiViewTransform(EVERYTHING, mean=MEAN, std=STD, channels=3)
    params = views.make_params(0, 0, len(images))
    (out,) = views(images, params)
    for v in range(2):
        for i, image in enumerate(images):
            expected = F.normalize(by_torchvision(image, EVERYTHING, params, v, i), MEAN, STD)
            error = (out[v, i] - expected).abs()
            # Rounding may move a value across the threshold of the solarisation in one of the two views.
            assert error.median() < 1e-5
            assert (error > 2e-4).double().mean() < 0.005


def test_views_are_a_function_of_seed_and_step():
    images, views = pictures(), make(EVERYTHING)
    one = views(images, views.make_params(1, 2, 12))[0]
    assert torch.equal(one, views(images, views.make_params(1, 2, 12))[0])
    assert not torch.equal(one, views(images, views.make_params(1, 3, 12))[0])
    assert not torch.equal(one, views(images, views.make_params(2, 2, 12))[0])
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("cuts", [(6,), (4, 8), (1, 2, 3, 7)])
def test_views_do_not_depend_on_the_number_of_processes(cuts):
    images, views = pictures(), make(EVERYTHING, ViewConfig(count=3, size=12, noise=NoiseConfig(probability=0.5)))
    params = views.make_params(0, 7, 12)
    edges = (0, *cuts, 12)
    parts = [views(images[a:b], params.select_samples(slice(a, b))) for a, b in itertools.pairwise(edges)]
    for whole, *pieces in zip(views(images, params), *parts, strict=True):
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=0)


def test_views_are_ordered_by_size_and_then_by_config():
    bright = replace(PLAIN, count=1, size=12)
    dark = replace(bright, solarize=SolarizeConfig(probability=1.0))
    views = make(bright, ViewConfig(count=2, size=24), dark, ViewConfig(count=4, size=8))
    assert views.sizes == [24, 12, 8]
    assert views.count == 8
    white = torch.full((5, 3, 30, 20), 255, dtype=torch.uint8)
    out = views(white, views.make_params(0, 0, 5))
    assert [x.shape for x in out] == [(2, 5, 3, 24, 24), (2, 5, 3, 12, 12), (4, 5, 3, 8, 8)]
    assert (out[1][0] > out[1][1]).all()  # the solarised view is black
    assert {x.dtype for x in out} == {torch.float32}


def test_other_numbers_of_channels_are_cropped_blurred_and_brightened():
    jitter, blur = JitterConfig(saturation=0.0, hue=0.0), BlurConfig(probability=0.5)
    views = make(ViewConfig(jitter=jitter, grayscale=0.0, blur=blur), channels=5)
    images = pictures(channels=5)
    (out,) = views(images, views.make_params(0, 0, 12))
    assert out.shape == (2, 12, 5, 32, 32)
    moved = views(images.roll(1, 1), views.make_params(0, 0, 12))[0]
    torch.testing.assert_close(moved.roll(-1, 2), out, atol=1e-5, rtol=0)  # no channel is special


def test_custom_transforms_come_before_the_normalisation():
    seen = []

    def invert(x, generator):
        seen.append((x.min() >= 0, x.max() <= 1, torch.rand(3, generator=generator)))
        return 1 - x

    images, params = pictures(), make(EVERYTHING).make_params(0, 0, 12)
    half = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "channels": 3}
    both = (MultiViewTransform(EVERYTHING, **half, custom_transforms=each) for each in ((), (invert,)))
    plain, inverted = (views(images, params)[0] for views in both)
    torch.testing.assert_close(inverted, -plain, atol=1e-5, rtol=0)
    make(EVERYTHING, custom_transforms=(invert,))(images, params)
    make(EVERYTHING, custom_transforms=(invert,))(images, make(EVERYTHING).make_params(0, 1, 12))
    assert all(low and high for low, high, _ in seen)
    first, again, other_step = (torch.stack([draws for *_, draws in seen[k : k + 12]]) for k in (0, 12, 24))
    assert torch.equal(first, again)
    assert not torch.equal(first, other_step)
    assert len(first.unique(dim=0)) == 12  # other numbers for each image


def test_custom_transforms_draw_the_same_numbers_for_any_share_of_the_batch():
    views = make(EVERYTHING, custom_transforms=(lambda x, g: x + torch.rand(x.shape, generator=g),))
    images, params = pictures(), views.make_params(0, 0, 12)
    parts = [views(images[part], params.select_samples(part))[0] for part in (slice(0, 5), slice(5, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), views(images, params)[0])


def test_a_transform_of_torchvision_sees_each_view_and_draws_the_same_numbers_for_any_share_of_the_batch():
    erase = v2.RandomErasing(p=1.0, value=0.0)
    plain, erased = (make(EVERYTHING, custom_transforms=each) for each in ((), (each_view(erase),)))
    images, params = pictures(), plain.make_params(0, 0, 12)
    (views,), (other,) = erased(images, params), plain(images, params)
    black = views == -torch.tensor(MEAN).view(3, 1, 1) / 0.25
    assert torch.equal(torch.where(black, 0, views), torch.where(black, 0, other))
    assert (
        len({tuple(each.flatten().tolist()) for each in black.all(2).flatten(0, 1)}) == 24
    )  # another box in each view
    parts = [erased(images[part], params.select_samples(part))[0] for part in (slice(0, 5), slice(5, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), views)
    with pytest.raises(UserError, match="the custom transform 'ToPILImage' returns Image, expected a tensor"):
        make(EVERYTHING, custom_transforms=(each_view(v2.ToPILImage()),))(images, params)


def test_a_transform_of_albumentations_draws_the_same_numbers_for_any_share_of_the_batch():
    dropout = pytest.importorskip("albumentations").CoarseDropout(p=1.0, fill=0.0)

    def drop(view):
        dropout.set_random_seed(torch.randint(2**31, ()).item())
        return torch.as_tensor(dropout(image=view.permute(1, 2, 0).numpy())["image"]).permute(2, 0, 1)

    views = make(EVERYTHING, custom_transforms=(each_view(drop),))
    images, params = pictures(), views.make_params(0, 0, 12)
    (whole,) = views(images, params)
    black = whole == -torch.tensor(MEAN).view(3, 1, 1) / 0.25
    assert len({tuple(each.flatten().tolist()) for each in black.all(2).flatten(0, 1)}) == 24  # another hole each
    parts = [views(images[part], params.select_samples(part))[0] for part in (slice(0, 5), slice(5, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (50, 90)])
def test_crops_of_single_images_give_the_same_views(height, width):
    images = pictures(height=height, width=width)
    configs = [EVERYTHING, ViewConfig(count=1, size=12, flip=1.0)]
    views = MultiViewTransform(configs, mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    params = views.make_params(0, 3, 12)
    each = [crop_image(views, image, params.select_samples(slice(i, i + 1))) for i, image in enumerate(images)]
    out = views.augment([torch.stack(crops, 1) for crops in zip(*each, strict=True)], params)
    for a, b in zip(out, views(images, params), strict=True):
        # The crops are rounded to uint8, and values near the threshold may be inverted in one of the two views.
        error = (a - b).abs()
        assert error.median() < 1 / 255
        assert (error > 4 / 255).double().mean() < 0.03


def test_chunks_of_any_size_give_the_same_views(monkeypatch):
    images, views = pictures(), make(EVERYTHING, ViewConfig(count=2, size=20, noise=NoiseConfig(probability=0.5)))
    params = views.make_params(0, 0, 12)
    whole = views(images, params)[0]
    for views_at_a_time in (0.4, 1, 2.5, 9):
        monkeypatch.setattr(module, "CPU_CHUNK_BYTES", int(views_at_a_time * 3 * 20 * 20 * 4))
        torch.testing.assert_close(views(images, params)[0], whole, atol=1e-5, rtol=0)


@pytest.fixture
def unchecked(untyped):
    """Disable the shape checks, which torch.compile cannot trace."""
    torch._dynamo.reset()


def functions():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(2, 4, 3, 16, 16, generator=g)
    one = torch.rand(2, 4, generator=g)
    flat, few = x.flatten(0, 1), one.flatten() + 0.5
    box, flips = torch.tensor([1.0, 2, 20, 17]).expand(2, 4, 4), (torch.rand(2, 4, 2, generator=g) < 0.5).float()
    return {
        "resized_crop": (functools.partial(resized_crop, size=16), (pictures(4), box, flips)),
        "warp": (warp, (flat, torch.rand(8, 2, 3, generator=g))),
        "blend_": (blend_, (x, torch.rand(2, 4, 3, generator=g))),
        "adjust_hue_": (adjust_hue_, (x, one)),
        "gaussian_blur": (functools.partial(gaussian_blur, radius=4), (flat, few)),
        "solarize_": (solarize_, (x, one)),
        "gaussian_noise_": (gaussian_noise_, (x, one, (one * 1000).floor())),
        "normalize_": (normalize_, (x, torch.tensor(MEAN), torch.tensor(STD))),
    }


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", functions())
def test_each_function_compiles_as_one_graph(name):
    f, arguments = functions()[name]
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    out = compiled(*(a.clone() for a in arguments))
    torch.testing.assert_close(out, f(*(a.clone() for a in arguments)), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("unchecked")
def test_compiled_views_are_the_same(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    images, params = pictures(), make(EVERYTHING).make_params(0, 0, 12)
    compiled, eager = (make(EVERYTHING, compile=on)(images, params)[0] for on in (True, False))
    torch.testing.assert_close(compiled, eager, atol=5e-6, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_views_without_waiting():
    images, views = pictures(64), make(EVERYTHING, ViewConfig(count=4, size=12, noise=NoiseConfig(probability=0.5)))
    params = views.make_params(0, 0, 64)
    there = images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = views(there, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(out, views(images, params), strict=True):
        assert ((a.cpu() - b).abs() > 1e-3).double().mean() < 0.005
