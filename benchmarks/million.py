"""Measure the first and the last batch of an epoch, and the memory, of a million images: a folder of classes, a Parquet
file, and tar shards.

    python -m benchmarks.million [--images 10000 100000 1000000]

The images are 16 px PNGs, so that the number of entries counts and not their size. A measurement is a new process:
seconds to open the source, then to the first batch of 64, then to the last batch of the epoch, as in a resumed run; and
the largest memory above that after the imports. Writes `benchmarks/results/million.json`. Linux.
"""

import io
import resource
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
import tyro
from PIL import Image

from benchmarks import timing
from fullrank.images import Decoding, Steps, dataloader, train_and_test
from fullrank.images.parallel import process_context
from fullrank.run import write_json
from fullrank.views import MultiViewTransform, ViewConfig

CLASSES, BATCH, SHARDS = 1000, 64, 10


def main(*, images: tuple[int, ...] = (10_000, 100_000, 1_000_000)) -> None:
    rows = []
    for count in images:
        for kind, write in WRITERS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = write(Path(folder) / "data", count)
                row: dict[str, Any] = {"source": kind, "images": count}
                for _ in range(2):  # the second time, what the first one may have stored is there
                    with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
                        row["first" if "first" not in row else "again"] = pool.submit(measure, str(path)).result()
                rows.append(row)
                print(row, flush=True)
    what = "a new process each: seconds, and MiB above the process after its imports"
    write_json(timing.RESULTS / "million.json", {"what": what, "environment": timing.environment(), "rows": rows})


def measure(path: str) -> dict[str, float]:
    """Open a source, and load the first and the last batch of an epoch."""
    torch.set_num_threads(1)
    transform = MultiViewTransform(ViewConfig(size=16), mean=(0.5,) * 3, std=(0.25,) * 3, channels=3)
    before, start = peak_mib(), time.perf_counter()
    images = train_and_test(path).train
    opened = time.perf_counter()
    found = {"open": opened - start}
    for name, step in (("first_batch", 0), ("last_batch", len(images) // BATCH - 1)):
        began = time.perf_counter()
        steps = Steps(seed=0, batch_size=BATCH, start=step, stop=step + 1)
        next(iter(dataloader(images, transform, steps, decoding=Decoding(workers=0))))
        found[name] = time.perf_counter() - began
    found["memory"] = peak_mib() - before
    return {name: round(value, 2) for name, value in found.items()}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def png() -> bytes:
    """Return the bytes of an image."""
    file = io.BytesIO()
    Image.effect_noise((16, 16), 64).convert("RGB").save(file, "PNG")
    return file.getvalue()


def folder(path: Path, images: int) -> Path:
    """Write the images, which are hard links, as PATH/CLASS/NUMBER.png."""
    for label in range(CLASSES):
        folder = path / f"class{label:04}"
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes(png())
        for i in range(1, images // CLASSES):
            (folder / f"{i}.png").hardlink_to(folder / "0.png")
    return path


def parquet(path: Path, images: int) -> Path:
    """Write the images with their bytes and labels in one Parquet file."""
    path.mkdir()
    column = pyarrow.array([{"bytes": png(), "path": f"{i}.png"} for i in range(images)])
    table = pyarrow.table({"image": column, "label": [i % CLASSES for i in range(images)]})
    pyarrow.parquet.write_table(table, path / "train.parquet", row_group_size=1000)
    return path / "train.parquet"


def tar(path: Path, images: int) -> Path:
    """Write the images as CLASS/NUMBER.png of ten tar files."""
    path.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(path / f"train-{shard:06}.tar", "w") as file:
            for i in range(shard, images, SHARDS):
                member, data = tarfile.TarInfo(f"class{i % CLASSES:04}/{i}.png"), png()
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return path


WRITERS: dict[str, Callable[[Path, int], Path]] = {"folder": folder, "parquet": parquet, "tar": tar}

if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
