import io

import datasets
import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def _no_shutdown_delay(monkeypatch):
    """Remove the five seconds that a newer `datasets` sleeps when a shuffled stream of Parquet ends."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)


@pytest.fixture
def photo():
    """Return smooth colours, which JPEG and resizing change little."""
    ramp = np.linspace(0, 255, 64 * 48).reshape(48, 64)
    return Image.fromarray(np.stack([ramp, ramp[::-1], ramp[:, ::-1]], -1).astype(np.uint8))


@pytest.fixture
def write(tmp_path):
    """Return a function that writes small images of different colours and returns the folder."""

    def write_files(*names, folder="photos", size=(8, 6)):
        for k, name in enumerate(names):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (k % 256, 100, 200)).save(path)
        return tmp_path / folder

    return write_files


def encoded(k, size=(8, 6)):
    file = io.BytesIO()
    Image.new("RGB", size, (k % 256, 100, 200)).save(file, "png")
    return file.getvalue()


@pytest.fixture
def parquet(tmp_path):
    """Return a function that writes a Parquet file in the layout of the hub, with 12 images of 3 classes."""

    def write_parquet(name="train-00000-of-00001.parquet", n=12, unreadable=()):
        path = tmp_path / "tables" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = [{"bytes": b"no image" if k in unreadable else encoded(k), "path": f"{k}.png"} for k in range(n)]
        kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "emu"])}
        features = datasets.Features(kinds | {"size": datasets.Value("float32")})
        columns = {"image": cells, "label": [k % 3 for k in range(n)], "size": [0.5] * n}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
        return path

    return write_parquet
