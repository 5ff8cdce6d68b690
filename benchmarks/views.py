"""Measure the time per view of fullrank, of the per-image transforms of torchvision and lightly, and of kornia's
batched ones.

    python -m benchmarks.views                     # two minutes; needs pip install --group bench .
    python -m benchmarks.views --device cuda       # batches in GPU memory

All pipelines take turns on one thread (`timing.py`), and return float32 batches. The times are CPU time, on a GPU
elapsed time. The images are random, with the 1/f spectrum of photographs. The script prints tables and writes
`results/views.json`.

There are two tasks. `small` is a batch of 256 images of 32 pixels in memory with 2 views: crop, flip, jitter (0.4, 0.4,
0.2, 0.1) with probability 0.8 and grayscale 0.2. `photos` is a batch of 16 JPEG files of 500 × 375 pixels, including
decoding, with 2 views of 224 pixels and SimCLR's ImageNet parameters: jitter (0.8, 0.8, 0.8, 0.2), grayscale 0.2, blur
0.5. On a GPU there is only `small`.
"""

import tempfile
from pathlib import Path

import kornia.augmentation as K
import numpy as np
import torch
import tyro
from lightly.transforms import SimCLRTransform
from lightly.transforms.utils import IMAGENET_NORMALIZE
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchvision.transforms import v2

from benchmarks import timing
from benchmarks.timing import Work
from fullrank.images.dataloaders import decode_and_crop
from fullrank.run import read_json, write_json
from fullrank.views import BlurConfig, JitterConfig, MultiViewTransform, ViewConfig

MEAN, STD = IMAGENET_NORMALIZE["mean"], IMAGENET_NORMALIZE["std"]
SIZE = 32
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}
PACKAGES = ("lightly", "kornia", "pillow")


def random_image(height: int, width: int, *, rng: np.random.Generator) -> Image.Image:
    """Return noise with an amplitude of 1/f and correlated channels."""
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    amplitude = 1 / np.maximum(f, 1 / max(height, width))[..., None]
    noise = np.fft.rfft2(rng.standard_normal((height, width, 3)), axes=(0, 1)) * amplitude
    mixing = np.array([[1, 1, 1], [0.3, -0.1, -0.2], [0.05, -0.15, 0.1]])
    x = np.fft.irfft2(noise, s=(height, width), axes=(0, 1)) @ mixing
    return Image.fromarray(np.clip(127 + 55 * (x - x.mean()) / x.std(), 0, 255).astype(np.uint8))


def collate(samples: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(views) for views in zip(*samples, strict=True)]


def small(images: list[Image.Image], device: str) -> dict[str, Work]:
    """Return the pipelines at 32 pixels; each pipeline computes two views of each image."""
    spec = ViewConfig(count=2, size=SIZE, jitter=JitterConfig(**JITTER))
    arrays = np.stack([np.asarray(image) for image in images])
    pixels = torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous().to(device)

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)
        return lambda: views(pixels, views.make_params(0, 0, len(pixels)))

    def kornia(cropping: str) -> Work:
        crop, jitter = K.RandomResizedCrop((SIZE, SIZE), cropping_mode=cropping), K.ColorJitter(**JITTER, p=0.8)
        rest = K.RandomHorizontalFlip(), jitter, K.RandomGrayscale(p=0.2), K.Normalize(MEAN, STD)
        batched = K.AugmentationSequential(crop, *rest)
        return lambda: [batched(pixels / 255), batched(pixels / 255)]

    batched = {"fullrank": fullrank(), "fullrank, compiled": fullrank(compile=True)}
    batched |= {"kornia": kornia("slice"), "kornia, cropping by resampling": kornia("resample")}
    if device != "cpu":
        return batched
    jitter = v2.RandomApply([v2.ColorJitter(**JITTER)], 0.8)
    crop = v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2)
    reference = v2.Compose([*crop, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    lightly = SimCLRTransform(SIZE, cj_strength=0.5, cj_sat=0.4, gaussian_blur=0.0)
    return batched | {
        "torchvision v2, Pillow": lambda: collate([[reference(image), reference(image)] for image in images]),
        "lightly SimCLRTransform": lambda: collate([lightly(image) for image in images]),
    }


def photos(files: list[Path]) -> dict[str, Work]:
    """Return the pipelines at 224 pixels, from files."""
    jitter = JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    spec = ViewConfig(count=2, size=224, jitter=jitter, blur=BlurConfig(probability=0.5, sigma=(0.1, 2.0)))
    lightly = SimCLRTransform(224)

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)

        def work():
            params = views.make_params(0, 0, len(files))
            samples = [params.select_samples(slice(i, i + 1)) for i in range(len(files))]
            crops = [decode_and_crop(Image.open(file), views, p) for file, p in zip(files, samples, strict=True)]
            return views.augment([torch.stack(crop, 1) for crop in zip(*crops, strict=True)], params)

        return work

    return {
        "fullrank": fullrank(),
        "fullrank, compiled": fullrank(compile=True),
        "lightly SimCLRTransform": lambda: collate([lightly(Image.open(file).convert("RGB")) for file in files]),
        "decoding alone": lambda: [Image.open(file).convert("RGB") for file in files],
    }


def report(task: str, reference: str, works: dict[str, Work], *, views: int, rounds: int, clock: timing.Clock) -> dict:
    """Time the pipelines, print a table, and return microseconds per view with the ratios to the reference."""
    times = timing.measure(works, rounds=rounds, clock=clock)
    micros = {name: [round(1e6 * t / views, 2) for t in (s.median, s.low, s.high)] for name, s in times.items()}
    ratio = {name: round(micros[reference][0] / value[0], 2) for name, value in micros.items()}
    table = Table(task, "µs per view", "quartiles", f"× {reference}")
    for name, (median, low, high) in micros.items():
        table.add_row(name, f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{ratio[name]:.2f}")
    Console().print(table)
    medians, quartiles = {name: m[0] for name, m in micros.items()}, {name: m[1:] for name, m in micros.items()}
    return {"reference": reference, "microseconds_per_view": medians, "quartiles": quartiles, "ratio": ratio}


def main(
    *,
    device: str = "cpu",
    images: int = 256,
    files: int = 16,
    rounds: int = 15,
    out: Path = timing.RESULTS / "views.json",
) -> None:
    """Compare the pipelines."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    on_cpu = device == "cpu"
    settings = {"rounds": rounds, "clock": "cpu" if on_cpu else "wall"}
    pictures = [random_image(SIZE, SIZE, rng=rng) for _ in range(images)]
    task = "32 px, in memory", "torchvision v2, Pillow" if on_cpu else "kornia"
    rows = {"small": report(*task, small(pictures, device), views=2 * images, **settings)}
    if on_cpu:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{i}.jpg" for i in range(files)]
            for path in paths:
                random_image(375, 500, rng=rng).save(path, quality=90)
            task = "224 px, from JPEG files", "lightly SimCLRTransform"
            rows["photos"] = report(*task, photos(paths), views=2 * files, **settings)
    n = {"images": images, "files": files, "views": 2}
    found = timing.environment(*PACKAGES, n=n, seed=0, device=device, **settings) | rows
    before = read_json(out) if out.exists() else {}
    write_json(out, before | (found if on_cpu else {f"on {device}": found}))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
