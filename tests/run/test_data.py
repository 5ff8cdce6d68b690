import time

import numpy as np
import pytest
import torch
from PIL import Image

from fullrank.images import Images, MemoryImages
from fullrank.images.dataset_info import evenly_spaced
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, ProbeConfig, Recipe, SpectrumConfig, assemble, build_method
from fullrank.run.data import SeededBatches, load_batches, open_data
from fullrank.views import ViewConfig

CPU = torch.device("cpu")


def folder(path, sizes, *, splits=("train", "test")):
    """Write small pictures of two classes to a folder; `sizes` has one (width, height) per picture."""
    rng = np.random.default_rng(0)
    for split in splits:
        for k, (width, height) in enumerate(sizes):
            file = path / split / ("cat", "dog")[k % 2] / f"{k:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
    return str(path)


@pytest.fixture
def even(tmp_path):
    """Twelve pictures per split, all of 12×10 px."""
    return folder(tmp_path / "even", [(12, 10)] * 12)


@pytest.fixture
def mixed(tmp_path):
    return folder(tmp_path / "mixed", [(12, 10), (16, 10), (20, 20), (10, 30)] * 3)


SMALL = BackboneConfig(arguments={"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}, stem="small")


def recipe(source, **numbers):
    data = {name: numbers.pop(name) for name in DataConfig.__dataclass_fields__ if name in numbers}
    usual = {"views": (ViewConfig(size=8),), "backbone": SMALL, "projector": ProjectorConfig(widths=(8, 6))}
    return Recipe(data=DataConfig(source=source, **{"workers": 0} | data), **usual | {"batch_size": 4} | numbers)


def opened(source, **numbers):
    """Return the recipe with channel statistics, the assembly, the data, and the lines for the user."""
    lines = []
    given = recipe(source, **numbers)
    method = build_method(given)
    complete, data = open_data(given, method, notify=lines.append)
    return complete, assemble(complete, method), data, lines


def test_a_small_dataset_of_one_size_is_loaded_into_memory(even):
    complete, parts, data, lines = opened(even)
    assert isinstance(data.train, MemoryImages)
    assert data.sample is data.train
    assert (data.num_images, len(data.train)) == (12, 12)
    assert data.train.pixels.shape == (12, 3, 10, 12)
    assert data.held_out.pixels.shape == (12, 3, 8, 8)
    assert (data.sample.classes, data.num_classes) == (("cat", "dog"), 2)
    assert "12 images" in lines[0]
    assert parts.preprocess.mean == complete.data.mean


def test_unreadable_images_are_counted_before_the_run(even, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "even" / split / "cat" / "002.png").write_bytes(b"no image")
    _, _, data, lines = opened(even)
    assert data.num_images == 11
    assert {f"1 of 12 {kind} images cannot be read" for kind in ("training", "held-out")} <= {*lines}


def test_statistics_are_measured_on_the_training_images_and_written_into_the_recipe(even):
    complete, _, data, _ = opened(even)
    pixels = data.train.pixels.double() / 255
    assert complete.data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-5)
    assert complete.data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-4)


def test_images_of_several_sizes_stay_on_disk(mixed):
    _, _, data, lines = opened(mixed)
    assert not isinstance(data.train, MemoryImages)
    assert data.num_images == 12
    assert "images stay on disk and are decoded when needed: 12 of 10×10 to 20×30 px" in lines[1]


def test_images_stay_on_disk_if_one_image_outside_the_sample_has_another_size(tmp_path):
    missed = min({*range(65)} - {*evenly_spaced(130, 64)})  # the 65 cats come first, and they have the even numbers
    sizes = [(20, 10) if k == 2 * missed else (12, 10) for k in range(130)]
    source = folder(tmp_path / "odd", sizes, splits=("train",))
    folder(tmp_path / "odd", [(12, 10)] * 4, splits=("test",))
    _, _, data, lines = opened(source)
    assert not isinstance(data.train, MemoryImages)
    assert "several sizes (--data.size S --data.storage memory" in lines[1]


@pytest.mark.parametrize(("samples", "expected"), [(0, 80), (7, 7), (10_000, 359)])
def test_the_recipe_sets_the_number_of_held_out_images(samples, expected):
    """0 means ten images per dimension of the wider of backbone and projector, if the run is long enough."""
    _, _, data, _ = opened("digits", channels=1, epochs=100, spectrum=SpectrumConfig(samples=samples))
    assert data.held_out.pixels.shape == (expected, 1, 8, 8)


def test_held_out_images_are_chosen_by_the_seed_and_are_no_training_images():
    chosen = [opened("digits", channels=1, seed=seed, spectrum=SpectrumConfig(samples=50)) for seed in (0, 0, 1)]
    first, again, other = (data.held_out.labels for _, _, data, _ in chosen)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    _, _, data, lines = chosen[0]
    assert len(data.train) == 1438
    assert "20 % of its images are held out" in lines[0]
    train = {tuple(row) for row in data.train.pixels.flatten(1).tolist()}
    assert not any(tuple(row) in train for row in data.held_out.pixels.flatten(1).tolist())


def test_seeded_batches_seed_each_step_and_measure_only_the_wait():
    def slow():
        for item in range(3):
            time.sleep(0.02)
            yield [torch.tensor(item)], torch.zeros(1)

    batches, seen = SeededBatches(slow(), seed=0, start=0), []
    for (item,), _ in batches:
        time.sleep(0.1)
        seen.append((item.item(), torch.rand(()).item()))
    assert [item for item, _ in seen] == [0, 1, 2]
    assert 0.06 <= batches.wait_seconds < 0.3
    later = SeededBatches(iter([([torch.tensor(2)], torch.zeros(1))]), seed=0, start=2)
    next(later)
    assert torch.rand(()).item() == seen[2][1]  # a function of (seed, step)
    assert len({number for _, number in seen}) == 3


def test_the_online_probe_is_scored_on_all_labelled_readable_test_images(even, tmp_path):
    (tmp_path / "even" / "test" / "cat" / "000.png").write_bytes(b"no picture")
    Image.new("RGB", (12, 10)).save(tmp_path / "even" / "test" / "unlabelled.png")
    given = {"probe": ProbeConfig(epochs=(1.0,)), "spectrum": SpectrumConfig(samples=3), "max_error_fraction": 0.5}
    _, _, data, _ = opened(even, **given)
    readable = sorted(range(1, 12), key=lambda k: (k % 2, k))
    (test,) = data.scored
    assert test.names == tuple(f"test/{('cat', 'dog')[k % 2]}/{k:03}.png" for k in readable)
    assert test.labels.tolist() == [k % 2 for k in readable]
    assert opened(even, max_error_fraction=0.5)[2].scored == ()


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_only_the_subset_and_the_validation_images_are_opened(even, monkeypatch, storage):
    original, names = Images.open, set()
    monkeypatch.setattr(Images, "open", lambda self, index: names.add(self.name(index)) or original(self, index))
    complete, parts, data, lines = opened(even, subset=8, validation=0.25, storage=storage)
    assert "3 of 12 training images held out for validation" in lines[0]
    assert data.num_images == len(data.train) == 8
    assert len(data.held_out) == 3
    list(load_batches(complete, parts.views, data, CPU, start=0, stop=4))
    assert len(names) == 8 + 3
    assert all(name.startswith("train/") for name in names)
