from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.data import batches_of, decoders, prepare, write_preview
from fullrank.errors import UserError
from fullrank.images import DecodeErrors, MemoryImages, dataloader
from fullrank.images.dataset_info import evenly_spaced
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe, SpectrumConfig
from fullrank.views import ViewConfig

CPU = torch.device("cpu")


def folder(path, sizes, *, splits=("train", "test")):
    """A folder of small pictures of two classes; sizes are (width, height), one a picture."""
    rng = np.random.default_rng(0)
    for split in splits:
        for k, (width, height) in enumerate(sizes):
            file = path / split / ("cat", "dog")[k % 2] / f"{k:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
    return str(path)


@pytest.fixture
def even(tmp_path):
    """Twelve pictures a split, all of 12×10 px."""
    return folder(tmp_path / "even", [(12, 10)] * 12)


@pytest.fixture
def mixed(tmp_path):
    return folder(tmp_path / "mixed", [(12, 10), (16, 10), (20, 20), (10, 30)] * 3)


def recipe(source, **numbers):
    data = {name: numbers.pop(name) for name in ("channels", "storage", "size", "mean", "std", "workers", "num_images") if name in numbers}
    return replace(
        Recipe(
            data=DataConfig(source=source, **{"workers": 0, **data}),
            views=(ViewConfig(size=8),),
            backbone=BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small"),
            projector=ProjectorConfig(widths=(8, 6)),
            batch=4,
        ),
        **numbers,
    )


def prepared(source, **numbers):
    """Recipe, parts, data, and what was said."""
    said = []
    return *prepare(recipe(source, **numbers), say=said.append), said


def test_a_small_even_set_is_held_in_memory(even):
    complete, parts, data, said = prepared(even)
    assert isinstance(data.train, MemoryImages)
    assert data.sample is data.train
    assert (data.num_images, len(data.train)) == (12, 12)
    assert data.train.pixels.shape == (12, 3, 10, 12)
    assert data.held_out.shape == (12, 3, 8, 8)
    assert (data.classes, data.K) == (("cat", "dog"), 2)
    assert "12 images" in said[0]
    assert parts.preprocess.mean == complete.data.mean


def test_statistics_are_measured_on_the_training_images_and_written_into_the_recipe(even):
    complete, _, data, _ = prepared(even)
    pixels = data.train.pixels.double() / 255
    assert complete.data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-5)
    assert complete.data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)


def test_statistics_that_were_given_are_kept(even):
    complete, parts, _, _ = prepared(even, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert (complete.data.mean, complete.data.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert torch.equal(parts.views.mean, torch.tensor([0.1, 0.2, 0.3]))


def test_images_of_several_sizes_are_streamed_with_the_flag_that_holds_them(mixed):
    _, _, data, said = prepared(mixed)
    assert not isinstance(data.train, MemoryImages)
    assert data.num_images == 12
    assert said[1] == "images are streamed: 12 of 10×10 to 20×30 px (--data.storage memory holds them)"


def test_a_size_holds_images_of_several_sizes(mixed):
    _, _, data, _ = prepared(mixed, size=9)
    assert data.train.pixels.shape == (12, 3, 9, 9)


def test_memory_that_was_asked_for_and_is_impossible_is_an_error(mixed):
    with pytest.raises(UserError, match="size"):
        prepared(mixed, storage="memory")


def test_one_odd_image_that_the_survey_missed_sends_the_set_to_the_stream(tmp_path):
    missed = min({*range(65)} - {*evenly_spaced(130, 64)})  # the 65 cats come first, and they have the even numbers
    source = folder(tmp_path / "odd", [(20, 10) if k == 2 * missed else (12, 10) for k in range(130)], splits=("train",))
    folder(tmp_path / "odd", [(12, 10)] * 4, splits=("test",))
    _, _, data, said = prepared(source)
    assert not isinstance(data.train, MemoryImages)
    assert said[1] == "images are streamed: they are not all of one size (--data.size S --data.storage memory holds them at S×S)"


def test_streaming_can_be_asked_for(even):
    _, _, data, said = prepared(even, storage="disk")
    assert not isinstance(data.train, MemoryImages)
    assert "images are streamed: 12 of 12×10 to 12×10 px" in said[1]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_batches_start_anywhere_as_if_they_had_gone_on(even, storage):
    complete, parts, data, _ = prepared(even, storage=storage)
    whole = list(batches_of(complete, parts.views, data, CPU, start=0, stop=5))
    late = list(batches_of(complete, parts.views, data, CPU, start=3, stop=5))
    assert len(whole) == 5
    for (xs, labels), (ys, others) in zip(whole[3:], late, strict=True):
        assert [tuple(x.shape) for x in xs] == [(2, 4, 3, 8, 8)]
        assert all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))
        assert torch.equal(labels, others)


def test_the_stream_shows_the_images_of_memory_in_their_order(even):
    held, streamed = (prepared(even, storage=storage) for storage in ("memory", "disk"))
    first, second = (
        [labels.tolist() for _, labels in batches_of(complete, parts.views, data, CPU, start=0, stop=3)]
        for complete, parts, data, _ in (held, streamed)
    )
    assert first == second
    assert held[0].data.mean == pytest.approx(streamed[0].data.mean, abs=1e-3)


def test_batches_from_memory_are_those_of_the_recipe(even):
    complete, parts, data, _ = prepared(even)
    found = list(batches_of(complete, parts.views, data, CPU, start=1, stop=3))
    expected = list(dataloader(data.train, parts.views, seed=complete.seed, batch_size=4, start=1, stop=3))
    assert all(torch.equal(xs[0], ys[0]) for (xs, _), (ys, _) in zip(found, expected, strict=True))


@pytest.mark.parametrize(("samples", "expected"), [(0, 60), (7, 7), (10_000, 359)])
def test_as_many_images_are_held_out_as_the_watch_asks_for_or_there_are(samples, expected):
    """0 stands for ten for each dimension of the wider of backbone and projector, in a run that is long enough."""
    small = BackboneConfig(arguments={"channels": [4, 4, 4, 4], "layers": [1, 1, 1, 1]}, stem="small")
    _, _, data, _ = prepared("digits", channels=1, backbone=small, epochs=100, spectrum=SpectrumConfig(samples=samples))
    assert data.held_out.shape == (expected, 1, 8, 8)
    assert data.held_out_labels.shape == (expected,)


def test_a_watch_that_asks_for_more_images_than_there_are_is_planned_for_those(even):
    plans = [prepared(even, epochs=100, spectrum=SpectrumConfig(samples=samples))[2].plan for samples in (12, 10_000)]
    assert plans[0] == plans[1]


def test_held_out_images_are_chosen_by_the_seed():
    chosen = [prepared("digits", channels=1, seed=seed, spectrum=SpectrumConfig(samples=50))[2].held_out_labels for seed in (0, 0, 1)]
    assert torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0], chosen[2])


def test_training_and_held_out_digits_are_different_ones():
    _, _, data, said = prepared("digits", channels=1)
    assert len(data.train) == 1438
    assert "20 % of its images are held out" in said[0]
    train = {tuple(row) for row in data.train.pixels.flatten(1).tolist()}
    assert not any(tuple(row) in train for row in data.held_out.flatten(1).tolist())


def test_fewer_images_than_a_batch_are_refused(even):
    with pytest.raises(UserError, match="12 training images are fewer than a batch of 64; give --batch 6"):
        prepared(even, batch=64)


def test_a_misspelt_backbone_is_answered_before_any_image_is_read():
    with pytest.raises(UserError, match="unknown backbone 'resnet81'"):
        prepared("folder:/nowhere", backbone=BackboneConfig(name="resnet81"))


def test_unreadable_images_are_left_out_and_counted(tmp_path):
    source = folder(tmp_path / "some", [(12, 10)] * 30)
    (tmp_path / "some" / "train" / "cat" / "000.png").write_bytes(b"no picture")
    _, _, data, _ = prepared(source)
    assert (data.num_images, data.decode_errors.failed) == (29, 1)


def test_too_many_unreadable_images_are_an_error_and_no_reason_to_stream(tmp_path):
    source = folder(tmp_path / "many", [(12, 10)] * 12)
    for k in range(4):
        (tmp_path / "many" / "train" / ("cat", "dog")[k % 2] / f"{k:03}.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"could not be read|cannot be read"):
        prepared(source)


def test_the_length_of_a_remote_epoch_has_to_be_given():
    with pytest.raises(UserError, match=r"hf:uoft-cs/cifar10 arrives without a length; give the images of an epoch with --data.num_images"):
        prepared("hf:uoft-cs/cifar10", storage="streaming")


def test_labels_without_names_are_counted_up_to_the_greatest(even):
    _, _, data, _ = prepared(even)
    nameless = replace(data, classes=(), held_out_labels=torch.tensor([4, -1]))
    assert nameless.K == 5
    unlabelled = replace(data.train, labels=torch.full((12,), -1))
    assert replace(data, classes=(), train=unlabelled, sample=unlabelled, held_out_labels=torch.tensor([-1])).K == 2


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_the_preview_has_a_row_for_each_of_a_few_images(even, tmp_path, storage):
    complete, parts, data, _ = prepared(even, storage=storage)
    write_preview(tmp_path / "views.png", complete, parts.views, data)
    with Image.open(tmp_path / "views.png") as picture:
        width, height = picture.size
    assert width * 8 == pytest.approx(height * 3, rel=0.03)  # eight images; each beside its two views


def test_decoders_are_as_many_as_asked_or_leave_a_core_to_the_trainer(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [decoders(asked) for asked in (0, 3, -1)] == [0, 3, 7]
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert decoders(-1) == 1


def test_what_is_unreadable_is_recorded_in_one_place(even):
    _, _, data, _ = prepared(even)
    assert isinstance(data.decode_errors, DecodeErrors)
    assert data.decode_errors.attempts >= 24
