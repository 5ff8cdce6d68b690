import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, Decoding, MemoryImages, decode, open_images, open_stream
from fullrank.images.dataloaders import Steps, batch_indices, crop_batches, dataloader, decode_and_crop
from fullrank.views import BlurConfig, CropConfig, JitterConfig, MultiViewTransform, ViewConfig

N = 10


def test_an_epoch_has_every_image_at_most_once_and_drops_random_images():
    epoch = torch.cat([batch_indices(0, step, 4, 10) for step in range(2)])
    assert len(epoch.unique()) == 8
    kept = [torch.cat([batch_indices(0, 2 * e + k, 4, 10) for k in range(2)]).tolist() for e in range(20)]
    dropped = {frozenset(range(10)) - frozenset(each) for each in kept}
    assert len(dropped) > 5


def test_epochs_and_seeds_have_different_orders():
    steps = [(seed, epoch) for seed in (0, 1, 2**32, 2**32 + 1) for epoch in range(50)]
    assert len({tuple(batch_indices(seed, epoch, 50, 50).tolist()) for seed, epoch in steps}) == len(steps)


def make_transform(channels=3, **options):
    configs = (ViewConfig(size=6, count=2, blur=BlurConfig(probability=0.5)), ViewConfig(size=4, count=1))
    return MultiViewTransform(configs, mean=(0.5,) * channels, std=(0.5,) * channels, channels=channels, **options)


def steps(**options):
    return Steps(**dict(seed=0, batch_size=8, start=0, stop=5) | options)


def load_crops(images, transform=None, *, decoding=None, **options):
    return list(crop_batches(images, transform or make_transform(1), steps(**options), decoding))


def is_same(a, b):
    pairs = zip(a, b, strict=True)
    return all(torch.equal(labels, others) and all(map(torch.equal, x, y)) for (x, labels), (y, others) in pairs)


def concatenate(shares):
    """Concatenate the batches of several processes."""
    for parts in zip(*shares, strict=True):
        views = [torch.cat(xs, dim=1) for xs in zip(*(x for x, _ in parts), strict=True)]
        yield views, torch.cat([labels for _, labels in parts])


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")["all"].subset(range(100))


def test_crops_equal_decode_and_crop_of_each_index(digits):
    transform = make_transform(1)
    (crops, labels), *_ = load_crops(digits, transform, seed=3, start=20, stop=21)
    indices, params = batch_indices(3, 20, 8, 100).tolist(), transform.make_params(3, 20, 8)
    assert [x.shape for x in crops] == [(2, 8, 1, 6, 6), (1, 8, 1, 4, 4)]
    assert labels.tolist() == digits.labels[indices].tolist()
    for i, index in enumerate(indices):
        expected = decode_and_crop(digits.open(index), transform, params.select_samples(slice(i, i + 1)))
        assert all(torch.equal(size[:, i], x) for size, x in zip(crops, expected, strict=True))


def test_crops_do_not_depend_on_the_number_of_workers(digits):
    assert is_same(load_crops(digits), load_crops(digits, decoding=Decoding(workers=2)))


def test_batch_size_not_divisible_by_world_size_raises(digits, images):
    for source, transform in ((digits, make_transform(1)), (images, make_transform())):
        with pytest.raises(UserError, match="a batch of 8 is not divisible by 3 processes"):
            next(dataloader(source, transform, steps(world_size=3)))


@pytest.fixture
def partly_unreadable(write):
    """Return 30 JPEGs. Images 4, 5 and 29 are unreadable; the red value of each image is about eight times its
    index."""
    folder = write("none.png")
    (folder / "none.png").unlink()
    for k in range(30):
        Image.new("RGB", (40, 40), (8 * k, 0, 0)).save(folder / f"{k:02}.jpg")
    (folder / "04.jpg").write_text("no image")
    for k in (5, 29):
        content = (folder / f"{k:02}.jpg").read_bytes()
        (folder / f"{k:02}.jpg").write_bytes(content[: content.index(b"\xff\xda") + 12])
    return open_images(folder)["all"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_readable_image_replaces_an_unreadable_one(partly_unreadable, workers):
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    decoding = Decoding(workers, errors=decode_errors)
    batches = load_crops(partly_unreadable, make_transform(), batch_size=10, stop=3, decoding=decoding)
    found = [round(x / 8) for crops, _ in batches for x in crops[0][0, :, 0].float().mean(dim=(-1, -2)).tolist()]
    order = torch.cat([batch_indices(0, step, 10, 30) for step in range(3)]).tolist()
    assert found == [{4: 6, 5: 6, 29: 0}.get(k, k) for k in order]
    assert set(decode_errors.reasons) == {"04.jpg", "05.jpg", "29.jpg"}
    assert (decode_errors.attempts, decode_errors.failed) == (34, 4)  # image 5 was also tried as the replacement of 4


@pytest.mark.parametrize("orientation", [1, 6])
def test_crops_of_a_reduced_jpeg_are_close_to_those_of_the_whole_image(tmp_path, orientation):
    y, x = np.mgrid[0:1600, 0:2400] / 600
    pixels = np.stack([127 + 100 * c for c in (np.sin(x + y), np.cos(2 * x - y), np.sin(3 * y))], -1).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95, exif=exif)
    crop, jitter = CropConfig(scale=(0.4, 1.0)), JitterConfig(probability=0.0)
    config = ViewConfig(count=4, size=64, crop=crop, jitter=jitter, grayscale=0.0)
    transform = MultiViewTransform(config, mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    images, params = open_images(tmp_path)["all"], transform.make_params(0, 0, 1)
    image = images.open(0)
    reduced = decode_and_crop(image, transform, params)[0]
    whole = decode_and_crop(np.asarray(decode(images.open(0), 3)), transform, params)[0]
    assert image.size[1] < 1600
    assert (reduced.int() - whole.int()).abs().double().mean() < 2


def test_a_stream_gives_batches(parquet):
    stream = open_stream(str(parquet(n=20, unreadable=(3,))), buffer_size=5)
    ways = [Decoding(n, errors=DecodeErrors(max_error_fraction=0.5)) for n in (0, 2)]
    options = dict(batch_size=10, stop=4)
    batches = load_crops(stream, make_transform(), **options, decoding=ways[0])
    assert [labels.shape for _, labels in batches] == [(10,)] * 4
    assert list(ways[0].errors.reasons) == ["3.png"]
    assert is_same(batches, load_crops(stream, make_transform(), **options, decoding=ways[1]))


@pytest.fixture(scope="module")
def images():
    pixels = torch.randint(0, 256, (N, 3, 12, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemoryImages(pixels, torch.arange(N), tuple(f"{i}.png" for i in range(N)), ())


@pytest.fixture(scope="module")
def load_views(images):
    """Return a function that loads five batches of 4 images in memory."""

    def load(**options):
        return list(dataloader(images, make_transform(), steps(batch_size=4, **options)))

    return load


def assert_equal(batches, expected, *, atol=0.0):
    for (views, labels), (expected_views, expected_labels) in zip(batches, expected, strict=True):
        torch.testing.assert_close(views, expected_views, rtol=0, atol=atol)
        assert torch.equal(labels, expected_labels)


def test_images_in_memory_and_on_disk_give_the_same_batches(tmp_path, images, load_views):
    for k, pixels in enumerate(images.pixels):
        np.save(tmp_path / f"{k}.npy", pixels.permute(1, 2, 0).numpy())
    on_disk = open_images(tmp_path)["all"]
    on_disk.labels[:] = images.labels.numpy()
    batches = dataloader(on_disk, make_transform(), steps(batch_size=4))
    for (found, labels), (expected, expected_labels) in zip(batches, load_views(), strict=True):
        assert torch.equal(labels, expected_labels)
        # Crops are rounded to uint8.
        assert all((x - y).abs().median() < 2 / 255 / 0.5 for x, y in zip(found, expected, strict=True))


def test_ranks_together_load_the_single_process_views(load_views):
    shares = [load_views(rank=rank, world_size=4) for rank in range(4)]
    # Vectorised sums round differently for another number of images.
    assert_equal(concatenate(shares), load_views(), atol=1e-5)


def test_the_global_random_state_is_neither_read_nor_changed(load_views):
    expected = load_views()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert_equal(load_views(), expected)
    assert torch.equal(torch.get_rng_state(), before)
