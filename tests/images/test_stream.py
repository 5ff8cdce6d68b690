import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, batch_indices, decode, open_images, open_stream, stream_batches
from fullrank.views import CropConfig, MultiViewTransform, ViewConfig


def make_views(channels=3, **options):
    specs = (ViewConfig(size=6, count=2), ViewConfig(size=4, count=1))
    return MultiViewTransform(specs, mean=(0.5,) * channels, std=(0.5,) * channels, channels=channels, **options)


def run(images, views=None, **options):
    options = dict(seed=0, batch=8, start_step=0, steps=5) | options
    return list(stream_batches(images, views or make_views(1), **options))


def same(a, b):
    return all(
        torch.equal(labels, others) and all(map(torch.equal, crops, more)) for (crops, labels), (more, others) in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")["all"].subset(range(100))


def test_crops_are_those_of_the_views_in_the_order_of_the_data(digits):
    views = make_views(1)
    (crops, labels), *_ = run(digits, views, seed=3, start_step=20, steps=1)
    indices, draws = batch_indices(3, 20, 8, 100).tolist(), views.draw(3, 20, 8)
    assert [x.shape for x in crops] == [(2, 8, 1, 6, 6), (1, 8, 1, 4, 4)]
    assert labels.tolist() == digits.labels[indices].tolist()
    for i, index in enumerate(indices):
        for size, expected in zip(crops, views.crops(decode(digits.open(index), 1), draws, i), strict=True):
            assert torch.equal(size[:, i], expected)


def test_workers_change_nothing(digits):
    assert same(run(digits), run(digits, workers=2))


def test_a_run_may_start_at_any_step(digits):
    assert same(run(digits, steps=15)[11:], run(digits, start_step=11, steps=4))


def test_processes_share_the_batch_of_one(digits):
    whole = run(digits)
    shares = [run(digits, rank=rank, world=4) for rank in range(4)]
    for (crops, labels), *parts in zip(whole, *shares, strict=True):
        assert torch.equal(labels, torch.cat([part[1] for part in parts]))
        for k, size in enumerate(crops):
            assert torch.equal(size, torch.cat([part[0][k] for part in parts], dim=1))


def test_views_with_a_function_of_the_user_can_be_streamed_by_workers(digits):
    views = make_views(1, custom_transforms=(lambda x, generator: x,))
    assert same(run(digits, views, steps=1), run(digits, views, steps=1, workers=1))


def test_a_batch_that_cannot_be_shared_is_refused(digits):
    with pytest.raises(UserError, match="a batch of 8 images cannot be shared by 3 processes; choose a multiple of 3"):
        run(digits, world=3)


@pytest.fixture
def broken(write):
    """30 JPEGs of which 4, 5 and 29 are broken; the red of an image is about eight times its number."""
    folder = write("none.png")
    (folder / "none.png").unlink()
    for k in range(30):
        Image.new("RGB", (40, 40), (8 * k, 0, 0)).save(folder / f"{k:02}.jpg")
    (folder / "04.jpg").write_text("no image")
    for k in (5, 29):
        content = (folder / f"{k:02}.jpg").read_bytes()
        (folder / f"{k:02}.jpg").write_bytes(content[: content.index(b"\xff\xda") + 12])
    return open_images(folder)["all"]


def numbers(batches):
    return [round(x / 8) for crops, _ in batches for x in crops[0][0, :, 0].float().mean(dim=(-1, -2)).tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_readable_image_stands_in_for_a_bad_one(broken, workers):
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    seen = numbers(run(broken, make_views(3), batch=10, steps=3, workers=workers, decode_errors=decode_errors))
    order = torch.cat([batch_indices(0, step, 10, 30) for step in range(3)]).tolist()
    assert seen == [{4: 6, 5: 6, 29: 0}.get(k, k) for k in order]
    assert set(decode_errors.reasons) == {"04.jpg", "05.jpg", "29.jpg"}
    assert (decode_errors.tried, decode_errors.failed) == (34, 4)  # image 5 was also tried in the place of 4


def test_too_many_bad_images_stop_the_stream(broken):
    with pytest.raises(UserError, match="could not be read, more than the tolerated 1%"):
        run(broken, make_views(3), batch=10, steps=30, decode_errors=DecodeErrors(max_error_fraction=0.01))


def test_nothing_readable_in_a_row_stops_the_stream(write):
    folder = write("a.png", "b.png")
    for name in ("a.png", "b.png"):
        (folder / name).write_text("no image")
    with pytest.raises(UserError, match=r"100 images in a row cannot be read, the last is '[ab].png': not an image"):
        run(open_images(folder)["all"], make_views(3), batch=2, decode_errors=DecodeErrors(max_error_fraction=1.0))


def test_a_mistake_in_the_views_is_not_blamed_on_the_image(broken, monkeypatch):
    def crops(self, image, draws, i):
        raise IndexError("a bug")

    monkeypatch.setattr(MultiViewTransform, "crops", crops)
    with pytest.raises(IndexError, match="a bug"):
        run(broken.subset([0, 1]), make_views(3), batch=2)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_reduced_but_no_crop_is_enlarged(tmp_path, orientation, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (1600, 1200)).save(tmp_path / "a.jpg", exif=exif)
    drafts, draft = [], JpegImageFile.draft

    def watched(self, mode, size):
        result = draft(self, mode, size)
        drafts.append(self.size)
        return result

    monkeypatch.setattr(JpegImageFile, "draft", watched)
    views = MultiViewTransform(ViewConfig(size=64, count=1, crop=CropConfig(scale=(0.2, 0.2))), mean=(0.5,) * 3, std=(0.5,) * 3, channels=3)
    run(open_images(tmp_path)["all"], views, batch=1, steps=8)
    assert len(drafts) == 8
    shorter = np.array([min(size) for size in drafts])
    assert (shorter < 1200).all()
    smallest_crop = (0.2 * 3 / 4) ** 0.5 * shorter * (4 / 3) ** 0.5  # of the ratio 3:4 or 4:3, in the reduced image
    assert (smallest_crop >= 64).all()


def test_arrivals_are_streamed_as_well(parquet):
    path = parquet(n=20, broken=(3,))
    decode_errors = DecodeErrors(max_error_fraction=0.5)
    stream = open_stream(str(path), buffer=5)
    batches = run(stream, make_views(3), batch=10, steps=4, decode_errors=decode_errors)
    assert [labels.shape for _, labels in batches] == [(10,)] * 4
    assert list(decode_errors.reasons) == ["3.png"]
    assert same(batches, run(stream, make_views(3), batch=10, steps=4, decode_errors=DecodeErrors(max_error_fraction=0.5), workers=2))
