from dataclasses import replace

import pytest
import torch

from fullrank.images import MemoryImages
from fullrank.training import memory_batches
from fullrank.views import BlurConfig, CropConfig, JitterConfig, MultiViewTransform, ViewConfig

N = 10


@pytest.fixture(scope="module")
def images():
    pixels = torch.randint(0, 256, (N, 3, 12, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemoryImages(pixels, torch.arange(N), tuple(f"{i}.png" for i in range(N)), ())


@pytest.fixture(scope="module")
def views():
    specs = (ViewConfig(count=2, size=8, blur=BlurConfig(probability=0.5)), ViewConfig(count=1, size=4))
    return MultiViewTransform(specs, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), channels=3)


@pytest.fixture(scope="module")
def feed(images, views):
    def batches(*, start=0, stop=5, seed=0, **numbers):
        return list(memory_batches(images, views, seed=seed, batch=4, start=start, stop=stop, **numbers))

    return batches


def assert_equal(found, expected, *, atol=0.0):
    assert len(found) == len(expected)
    for (xs, labels), (wanted, wanted_labels) in zip(found, expected, strict=True):
        torch.testing.assert_close(xs, wanted, rtol=0, atol=atol)
        assert torch.equal(labels, wanted_labels)


def test_a_batch_has_the_views_of_each_size_and_the_labels(feed):
    for xs, labels in feed():
        assert [tuple(x.shape) for x in xs] == [(2, 4, 3, 8, 8), (1, 4, 3, 4, 4)]
        assert labels.shape == (4,)


def test_labels_belong_to_their_images(images):
    still = ViewConfig(size=8, crop=CropConfig(probability=0.0), flip=0.0, jitter=JitterConfig(probability=0.0), grayscale=0.0)
    flat = replace(images, pixels=images.labels.view(-1, 1, 1, 1).expand(N, 3, 12, 12).to(torch.uint8))
    plain = MultiViewTransform(still, mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    for (x,), labels in memory_batches(flat, plain, seed=0, batch=4, start=0, stop=5):
        torch.testing.assert_close(255 * x, labels.float().view(1, -1, 1, 1, 1).expand_as(x))


@pytest.mark.parametrize("world", [2, 4])
def test_the_shares_of_all_processes_are_the_batch_of_one(feed, world):
    shares = [feed(rank=rank, world=world) for rank in range(world)]
    joined = [
        ([torch.cat(xs, 1) for xs in zip(*(part[0] for part in parts), strict=True)], torch.cat([part[1] for part in parts]))
        for parts in zip(*shares, strict=True)
    ]
    assert_equal(joined, feed(), atol=1e-5)  # the vectors of the processor round differently for other numbers of images


def test_processes_see_different_images(feed):
    (_, first), (_, second) = feed(rank=0, world=2)[0], feed(rank=1, world=2)[0]
    assert not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize("start", [1, 2, 4])
def test_starting_late_is_continuing(feed, start):
    assert_equal(feed(start=start), feed()[start:])


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own(images, views):
    batches = list(memory_batches(images, views, seed=0, batch=5, start=0, stop=4))
    first, second = (torch.cat([labels for _, labels in batches[i : i + 2]]) for i in (0, 2))
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(N))
    assert not torch.equal(first, second)


def test_an_image_looks_different_each_time(images, views):
    (xs, _), (ys, _) = memory_batches(images, views, seed=0, batch=N, start=0, stop=2)
    assert not torch.equal(xs[0].sum((2, 3, 4)).sort().values, ys[0].sum((2, 3, 4)).sort().values)


def test_another_seed_is_another_order_and_other_views(feed):
    (xs, labels), (ys, others) = feed(stop=1)[0], feed(stop=1, seed=1)[0]
    assert not torch.equal(labels, others)
    assert not torch.equal(xs[0], ys[0])


def test_global_random_state_is_neither_read_nor_moved(feed):
    expected = feed()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert_equal(feed(), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_that_cannot_be_shared_is_a_bug(feed):
    with pytest.raises(AssertionError, match="4 images for 3 processes"):
        feed(world=3)
