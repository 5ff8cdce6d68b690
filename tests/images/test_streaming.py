from itertools import islice

import pytest

from fullrank.errors import UserError
from fullrank.images import Reading, StreamedImages, open_stream


def names(stream, n, **options):
    return [image.name for image in islice(stream.iterate(**options), n)]


def test_a_pass_has_every_image_once_in_a_shuffled_order(parquet):
    stream = open_stream(str(parquet()), buffer_size=100)
    first, second = (lambda both: (both[:12], both[12:]))(names(stream, 24, seed=0))
    expected = {f"{k}.png" for k in range(12)}
    assert set(first) == set(second) == expected
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("start", [0, 5, 12, 29])
def test_a_stream_goes_on_where_it_was(parquet, start, monkeypatch):
    stream, ends = open_stream(str(parquet()), buffer_size=4), []
    expected = names(stream, 40, seed=0, pass_ends=ends)
    assert ends == [12, 24, 36]
    read, shuffled = [], StreamedImages._shuffled
    monkeypatch.setattr(StreamedImages, "_shuffled", lambda *args: read.append(args[-1]) or shuffled(*args))
    assert names(stream, 40 - start, seed=0, start=start, pass_ends=ends) == expected[start:]
    assert ends == [12, 24, 36]
    assert read == [(k,) for k in range(start // 12, 4)]  # the passes before are not read again
    assert names(stream, 40 - start, seed=0, start=start) == expected[start:]


def test_processes_divide_the_images(parquet):
    stream = open_stream(str(parquet()))
    shares = [names(stream, 4, seed=0, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(f"{k}.png" for k in range(12))


def test_streamed_images_have_labels_and_pixels(parquet):
    stream = open_stream(str(parquet()))
    assert stream.classes == ("cat", "dog", "emu")
    for image in islice(stream.iterate(seed=0), 12):
        k = int(image.name.removesuffix(".png"))
        assert image.label == k % 3
        assert stream.collect([image]).open(0).getpixel((0, 0)) == (k, 100, 200)


def test_splits_and_sources_that_cannot_be_streamed_raise(parquet, write):
    with pytest.raises(UserError, match="'tset'; choose from train"):
        open_stream(str(parquet()), split="tset")
    with pytest.raises(UserError, match="'digits' cannot be streamed"):
        open_stream("digits")
    with pytest.raises(UserError, match="cannot be streamed, only hf:NAME, Parquet files, tar shards"):
        open_stream(str(write("a.png")))


@pytest.mark.parametrize("option", ["group_column", "split_column"])
def test_a_stream_refuses_columns_that_it_would_ignore(parquet, option):
    with pytest.raises(UserError, match=rf"data\.{option} is label"):
        open_stream(str(parquet()), Reading(**{option: "label"}))


def test_more_processes_than_images_raise(parquet):
    with pytest.raises(UserError, match=r"has no images for process 3 of 4 in pass 0; use fewer processes"):
        names(open_stream(str(parquet(n=2))), 1, seed=0, rank=3, world_size=4)
