from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from fullrank.evaluation import extract_features
from fullrank.images import DecodeErrors, Device, Preprocess, open_images
from fullrank.models import features
from fullrank.models.embed import write_embeddings as write
from fullrank.models.features import embedded_batches

GREY = Preprocess(1, 8, (0.3,), (0.4,))
SMALL = Device(accelerator="cpu", batch_size=30)


def write_embeddings(backbone, images, preprocess, out, *, overwrite=False, **options):
    return write(embedded_batches(backbone, images, preprocess, **options), images, out, overwrite=overwrite)


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")["all"].subset(range(100))


def test_rows_are_the_features_in_order(tmp_path, digits):
    torch.manual_seed(0)
    backbone = timm.create_model("resnet18", num_classes=0, in_chans=1, channels=(8, 8, 16, 16))
    out = tmp_path / "new folder" / "digits.parquet"
    assert write_embeddings(backbone, digits, GREY, out, device=SMALL) == 100
    table, features = pq.read_table(out), extract_features(backbone, digits, GREY, SMALL)
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 16)
    assert table.schema.field("label").type == pa.int64()
    assert table["name"].to_pylist() == features.names
    assert table["label"].to_pylist() == features.labels.tolist()
    assert np.array_equal(table["embedding"].combine_chunks().flatten().to_numpy().reshape(100, 16), features.X)


def test_several_labels_of_an_image_are_kept(tmp_path, digits):
    Y = np.zeros((100, 3), np.int8)
    Y[0, [0, 2]], Y[1], Y[3, 1] = 1, -1, 1
    images = replace(digits, multi_labels=Y, classes=("cat", "dog", "owl"))
    for suffix in ("parquet", "npz"):
        write_embeddings(nn.Flatten(), images, GREY, tmp_path / f"out.{suffix}", device=SMALL)
    assert np.array_equal(np.load(tmp_path / "out.npz")["multi_labels"], Y)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["label"].to_pylist()[:4] == ["0|2", None, "", "1"]
    assert table["class"].to_pylist()[:4] == ["cat|owl", None, "", "dog"]


def test_each_batch_is_a_row_group(tmp_path, digits):
    write_embeddings(nn.Flatten(), digits, GREY, tmp_path / "a.parquet", device=SMALL)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [30, 30, 30, 10]


def test_unlabelled_images_have_null_labels_and_unreadable_images_no_row(tmp_path):
    for i in range(12):
        Image.fromarray(np.full((8, 8), 20 * i, dtype=np.uint8)).save(tmp_path / f"{i:02}.png")
    (tmp_path / "05.png").write_text("no image")
    errors, out = DecodeErrors(), tmp_path / "out.parquet"
    images = open_images(str(tmp_path))["all"]
    assert write_embeddings(nn.Flatten(), images, GREY, out, device=SMALL, errors=errors) == 11
    table = pq.read_table(out)
    assert table["label"].null_count == 11
    assert [name.split(".")[0][-2:] for name in table["name"].to_pylist()] == [f"{i:02}" for i in range(12) if i != 5]
    assert list(errors.reasons) == [name for name in errors.reasons if name.endswith("05.png")] != []


def test_long_work_tells_its_progress_and_short_work_does_not(digits, monkeypatch):
    lines = []
    extract_features(nn.Flatten(), digits, GREY, SMALL, notify=lines.append)
    assert not lines
    monkeypatch.setattr(features, "BETWEEN", 0)
    extract_features(nn.Flatten(), digits, GREY, SMALL, notify=lines.append)
    assert [line.partition(",")[0] for line in lines] == [f"{done} of 100 images" for done in (30, 60, 90)]


def test_a_backbone_that_changes_leaves_no_file(tmp_path, digits):
    class Drifts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(64))

        def forward(self, images):
            self.mean += images.flatten(1).mean(0)
            return images.flatten(1)

    with pytest.raises(AssertionError, match="Drifts changed"):
        write_embeddings(Drifts(), digits, GREY, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []
