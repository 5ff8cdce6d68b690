"""Measure the time per view of fullrank and of the per-image transforms of torchvision and lightly (and kornia, if installed).

`python benchmarks/views.py` runs all pipelines alternately on one thread, prints a table and writes `benchmarks/results/views.json`.
Times are medians over rounds of the CPU time of the process, so other processes have little influence. All pipelines return float32
batches. The images are random, with the 1/f spectrum of photographs.

There are two tasks. `small` is a batch of 256 images of 32 pixels in memory with 2 views: crop, flip, jitter (0.4, 0.4, 0.2, 0.1) with
probability 0.8 and grayscale 0.2. `photos` is a batch of 16 JPEG files of 500 × 375 pixels, including decoding, with 2 views of 224
pixels and SimCLR's ImageNet parameters: jitter (0.8, 0.8, 0.8, 0.2), grayscale 0.2, blur 0.5.
"""

import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from lightly.transforms import SimCLRTransform
from lightly.transforms.utils import IMAGENET_NORMALIZE
from PIL import Image
from torchvision.transforms import v2

from fullrank.images.dataloaders import decode_and_crop
from fullrank.views import BlurConfig, JitterConfig, MultiViewTransform, ViewConfig

MEAN, STD = IMAGENET_NORMALIZE["mean"], IMAGENET_NORMALIZE["std"]
RESULTS = Path(__file__).parent / "results" / "views.json"
Work = Callable[[], object]


def random_image(height: int, width: int, *, rng: np.random.Generator) -> Image.Image:
    """Return noise with an amplitude of 1/f and correlated channels."""
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    noise = np.fft.rfft2(rng.standard_normal((height, width, 3)), axes=(0, 1)) / np.maximum(f, 1 / max(height, width))[..., None]
    x = np.fft.irfft2(noise, s=(height, width), axes=(0, 1)) @ np.array([[1, 1, 1], [0.3, -0.1, -0.2], [0.05, -0.15, 0.1]])
    return Image.fromarray(np.clip(127 + 55 * (x - x.mean()) / x.std(), 0, 255).astype(np.uint8))


def collate(samples: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(views) for views in zip(*samples, strict=True)]


def small(images: list[Image.Image]) -> dict[str, Work]:
    """Return the pipelines at 32 pixels; each pipeline computes two views of each image."""
    size = 32
    spec = ViewConfig(count=2, size=size, jitter=JitterConfig(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1))
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()
    reference = v2.Compose(
        [
            v2.RandomResizedCrop(size),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    lightly = SimCLRTransform(size, cj_strength=0.5, cj_sat=0.4, gaussian_blur=0.0)

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)
        return lambda: views(pixels, views.make_params(0, 0, len(pixels)))

    pipelines = {
        "fullrank": fullrank(),
        "fullrank, compiled": fullrank(compile=True),
        "torchvision v2, Pillow": lambda: collate([[reference(image), reference(image)] for image in images]),
        "lightly SimCLRTransform": lambda: collate([lightly(image) for image in images]),
    }
    try:
        import kornia.augmentation as K
    except ImportError:
        return pipelines
    steps = (K.RandomResizedCrop((size, size)), K.RandomHorizontalFlip(), K.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8))
    batched = K.AugmentationSequential(*steps, K.RandomGrayscale(p=0.2), K.Normalize(MEAN, STD))
    return pipelines | {"kornia": lambda: [batched(pixels / 255), batched(pixels / 255)]}


def photos(files: list[Path]) -> dict[str, Work]:
    """Return the pipelines at 224 pixels, from files."""
    jitter, blur = JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2), BlurConfig(probability=0.5, sigma=(0.1, 2.0))
    spec = ViewConfig(count=2, size=224, jitter=jitter, blur=blur)
    lightly = SimCLRTransform(224)

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)

        def work():
            params = views.make_params(0, 0, len(files))
            samples = (params.select_samples(slice(i, i + 1)) for i in range(len(files)))
            crops = zip(
                *(decode_and_crop(Image.open(file), views, sample) for file, sample in zip(files, samples, strict=True)), strict=True
            )
            return views.augment([torch.stack(crop, 1) for crop in crops], params)

        return work

    return {
        "fullrank": fullrank(),
        "fullrank, compiled": fullrank(compile=True),
        "lightly SimCLRTransform": lambda: collate([lightly(Image.open(file).convert("RGB")) for file in files]),
        "decoding alone": lambda: [Image.open(file).convert("RGB") for file in files],
    }


def measure(pipelines: dict[str, Work], *, views: int, rounds: int) -> dict[str, float]:
    """Return the median CPU time per view in microseconds; each round runs every pipeline once."""
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    for work in pipelines.values():
        work()
    for _ in range(rounds):
        for name, work in pipelines.items():
            start = time.process_time()
            work()
            times[name].append((time.process_time() - start) / views * 1e6)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def report(task: str, reference: str, times: dict[str, float]) -> dict:
    print(f"\n{task}\n{'':28}{'µs per view':>10}{'× ' + reference:>30}")
    for name, value in times.items():
        print(f"{name:28}{value:10.1f}{times[reference] / value:30.2f}")
    return {"reference": reference, "microseconds_per_view": times, "ratio": {n: round(times[reference] / t, 2) for n, t in times.items()}}


def main(*, images: int = 256, files: int = 16, rounds: int = 15):
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    pipelines = small([random_image(32, 32, rng=rng) for _ in range(images)])
    rows = {"small": report("32 px, in memory", "torchvision v2, Pillow", measure(pipelines, views=2 * images, rounds=rounds))}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.jpg" for i in range(files)]
        for path in paths:
            random_image(375, 500, rng=rng).save(path, quality=90)
        times = measure(photos(paths), views=2 * files, rounds=rounds)
    rows["photos"] = report("224 px, from JPEG files", "lightly SimCLRTransform", times)
    header = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version()} | versions("torch", "torchvision", "lightly", "kornia", "pillow", "numpy"),
        "n": {"images": images, "files": files, "views": 2, "rounds": rounds},
        "measure": "median CPU time",
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(header | rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
