from itertools import islice

import pytest

from fullrank.errors import UserError
from fullrank.images import open_stream


def arrived(stream, n, **options):
    return [arrival.name for arrival in islice(stream.arrivals(**options), n)]


def test_every_image_arrives_once_an_epoch_in_a_shuffled_order(parquet):
    stream = open_stream(str(parquet()), buffer=100)
    first, second = (lambda names: (names[:12], names[12:]))(arrived(stream, 24, seed=0))
    everything = {f"{k}.png" for k in range(12)}
    assert set(first) == set(second) == everything
    assert first != second
    assert first != sorted(first)


def test_the_order_is_given_by_the_seed_and_the_first_step(parquet):
    stream = open_stream(str(parquet()))
    assert arrived(stream, 12, seed=0) == arrived(stream, 12, seed=0)
    assert arrived(stream, 12, seed=0) != arrived(stream, 12, seed=1)
    assert arrived(stream, 12, seed=0) != arrived(stream, 12, seed=0, start=5)


def test_processes_share_the_images(parquet):
    stream = open_stream(str(parquet()))
    shares = [arrived(stream, 4, seed=0, rank=rank, world=3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(f"{k}.png" for k in range(12))


def test_arrivals_have_labels_and_images(parquet):
    stream = open_stream(str(parquet()))
    assert stream.classes == ("cat", "dog", "emu")
    for arrival in islice(stream.arrivals(seed=0), 12):
        k = int(stream.name(arrival).removesuffix(".png"))
        assert stream.label(arrival) == k % 3
        assert stream.open(arrival).getpixel((0, 0)) == (k, 100, 200)


def test_splits_and_sources_that_cannot_be_streamed_are_refused(parquet, write):
    with pytest.raises(UserError, match="'tset'; choose from train"):
        open_stream(str(parquet()), split="tset")
    with pytest.raises(UserError, match="'digits' cannot be streamed"):
        open_stream("digits")
    with pytest.raises(UserError, match="cannot be streamed, only hf:NAME and Parquet"):
        open_stream(str(write("a.png")))


def test_more_processes_than_images_are_refused(parquet):
    with pytest.raises(UserError, match=r"nothing arrives from .* for process 3 of 4; use fewer processes"):
        arrived(open_stream(str(parquet(n=2))), 1, seed=0, rank=3, world=4)


def test_a_real_data_set_streams(real):
    stream = open_stream(str(real / "cifar10"), split="test", buffer=10)
    arrival = next(stream.arrivals(seed=0))
    assert arrival.name.startswith("test/")
    assert stream.open(arrival).size == (32, 32)
    assert 0 <= stream.label(arrival) < 10
