"""Measure the time from a folder with many files to the first training batch: `python benchmarks/folder.py --files
100000`.

The script writes small PNG files in a hundred class folders to a temporary folder. Then it opens, splits and decodes
the folder like a run, without a cache. The result goes to `benchmarks/results/folder.json`.
"""

import argparse
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
from PIL import Image

from fullrank.images import crop_batches, train_and_test
from fullrank.views import MultiViewTransform, ViewConfig

CLASSES = 100


def main():
    from fullrank.run import write_json  # not at the top: the workers import this file too
    from fullrank.run.environment import hardware

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "folder.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), options.files, options.side)
        rounds = [first_batch(folder, workers) for workers in (0, 2)]
    header = {"date": str(date.today()), "hardware": hardware(), "files": options.files, "side": options.side}
    write_json(options.out, header | {"rounds": rounds})
    print(options.out.read_text())


def write_files(folder: Path, files: int, side: int):
    rng = np.random.default_rng(0)
    for k in range(CLASSES):
        (folder / f"class-{k:03}").mkdir()
    for i in range(files):
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(
            folder / f"class-{i % CLASSES:03}" / f"{i:06}.png"
        )


def first_batch(folder: str, workers: int) -> dict:
    start = time.perf_counter()
    images = train_and_test(folder).train
    list_seconds = time.perf_counter() - start
    views = MultiViewTransform(ViewConfig(), mean=(0.5,) * 3, std=(0.25,) * 3, channels=3)
    next(crop_batches(images, views, seed=0, batch_size=256, start=0, stop=1, workers=workers))
    return {
        "workers": workers,
        "seconds_to_list_and_split": round(list_seconds, 2),
        "seconds_to_first_batch": round(time.perf_counter() - start, 2),
    }


if __name__ == "__main__":
    main()
