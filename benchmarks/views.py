"""Measure the time per view of fullrank, of the per-image transforms of torchvision and lightly, and of kornia's
batched ones.

    python benchmarks/views.py                     # two minutes; needs pip install --group bench .
    python benchmarks/views.py --device cuda       # batches in GPU memory; triton-augment takes part if it is installed

All pipelines run alternately on one thread (`timing.py`), and return float32 batches. The times are CPU time, on a GPU
elapsed time. The images are random, with the 1/f spectrum of photographs. The script prints tables and writes
`results/views.json`.

There are two tasks. `small` is a batch of 256 images of 32 pixels in memory with 2 views: crop, flip, jitter (0.4, 0.4,
0.2, 0.1) with probability 0.8 and grayscale 0.2. `photos` is a batch of 16 JPEG files of 500 × 375 pixels, including
decoding, with 2 views of 224 pixels and SimCLR's ImageNet parameters: jitter (0.8, 0.8, 0.8, 0.2), grayscale 0.2, blur
0.5. On a GPU there is only `small`.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from lightly.transforms import SimCLRTransform
from lightly.transforms.utils import IMAGENET_NORMALIZE
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchvision.transforms import v2

import timing
from fullrank.images.dataloaders import decode_and_crop
from fullrank.run import read_json, write_json
from fullrank.views import BlurConfig, JitterConfig, MultiViewTransform, ViewConfig
from timing import Work

MEAN, STD = IMAGENET_NORMALIZE["mean"], IMAGENET_NORMALIZE["std"]
OUT = timing.RESULTS / "views.json"
SIZE = 32
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2}


def random_image(height: int, width: int, *, rng: np.random.Generator) -> Image.Image:
    """Return noise with an amplitude of 1/f and correlated channels."""
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    noise = (
        np.fft.rfft2(rng.standard_normal((height, width, 3)), axes=(0, 1))
        / np.maximum(f, 1 / max(height, width))[..., None]
    )
    x = np.fft.irfft2(noise, s=(height, width), axes=(0, 1)) @ np.array(
        [[1, 1, 1], [0.3, -0.1, -0.2], [0.05, -0.15, 0.1]]
    )
    return Image.fromarray(np.clip(127 + 55 * (x - x.mean()) / x.std(), 0, 255).astype(np.uint8))


def collate(samples: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(views) for views in zip(*samples, strict=True)]


def small(images: list[Image.Image], device: str) -> dict[str, Work]:
    """Return the pipelines at 32 pixels; each pipeline computes two views of each image."""
    spec = ViewConfig(count=2, size=SIZE, jitter=JitterConfig(**JITTER, hue=0.1))
    pixels = (
        torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous().to(device)
    )

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)
        return lambda: views(pixels, views.make_params(0, 0, len(pixels)))

    ours = {"fullrank": fullrank(), "fullrank, compiled": fullrank(compile=True)}
    return (
        ours
        | (per_image(images) if device == "cpu" else {})
        | kornia(pixels)
        | (triton_augment(pixels) if device != "cpu" else {})
    )


def per_image(images: list[Image.Image]) -> dict[str, Work]:
    reference = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(**JITTER, hue=0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    lightly = SimCLRTransform(SIZE, cj_strength=0.5, cj_sat=0.4, gaussian_blur=0.0)
    return {
        "torchvision v2, Pillow": lambda: collate([[reference(image), reference(image)] for image in images]),
        "lightly SimCLRTransform": lambda: collate([lightly(image) for image in images]),
    }


def kornia(pixels: torch.Tensor) -> dict[str, Work]:
    """Return kornia's batched pipeline, with each way of cropping: one image after the other (the default), or all at
    once."""
    import kornia.augmentation as K

    def pipeline(cropping: str) -> Work:
        crop = K.RandomResizedCrop((SIZE, SIZE), cropping_mode=cropping)
        jitter = K.ColorJitter(**JITTER, hue=0.1, p=0.8)
        batched = K.AugmentationSequential(
            crop, K.RandomHorizontalFlip(), jitter, K.RandomGrayscale(p=0.2), K.Normalize(MEAN, STD)
        )
        return lambda: [batched(pixels / 255), batched(pixels / 255)]

    return {"kornia": pipeline("slice"), "kornia, cropping by resampling": pipeline("resample")}


def triton_augment(pixels: torch.Tensor) -> dict[str, Work]:
    """Return the fused kernel of triton-augment, which has neither hue nor random resized crops: a random scale
    replaces the crop."""
    try:
        from triton_augment import TritonFusedAugment  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {}
    fused = TritonFusedAugment(
        crop_size=SIZE,
        horizontal_flip_p=0.5,
        scale=(1.0, 3.5),
        **JITTER,
        grayscale_p=0.2,
        mean=tuple(MEAN),
        std=tuple(STD),
    )
    return {"triton-augment, without hue": lambda: [fused(pixels / 255), fused(pixels / 255)]}


def photos(files: list[Path]) -> dict[str, Work]:
    """Return the pipelines at 224 pixels, from files."""
    jitter, blur = (
        JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),
        BlurConfig(probability=0.5, sigma=(0.1, 2.0)),
    )
    spec = ViewConfig(count=2, size=224, jitter=jitter, blur=blur)
    lightly = SimCLRTransform(224)

    def fullrank(**options) -> Work:
        views = MultiViewTransform(spec, mean=MEAN, std=STD, channels=3, **options)

        def work():
            params = views.make_params(0, 0, len(files))
            samples = (params.select_samples(slice(i, i + 1)) for i in range(len(files)))
            crops = zip(
                *(
                    decode_and_crop(Image.open(file), views, sample)
                    for file, sample in zip(files, samples, strict=True)
                ),
                strict=True,
            )
            return views.augment([torch.stack(crop, 1) for crop in crops], params)

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
    micros = {
        name: [round(1e6 * t / views, 2) for t in (time.median, time.low, time.high)] for name, time in times.items()
    }
    ratio = {name: round(micros[reference][0] / value[0], 2) for name, value in micros.items()}
    table = Table(task, "µs per view", "quartiles", f"× {reference}")
    for name, (median, low, high) in micros.items():
        table.add_row(name, f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{ratio[name]:.2f}")
    Console().print(table)
    medians = {name: median for name, (median, _, _) in micros.items()}
    return {
        "reference": reference,
        "microseconds_per_view": medians,
        "quartiles": {n: v[1:] for n, v in micros.items()},
        "ratio": ratio,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    settings = {"rounds": options.rounds, "clock": "cpu" if options.device == "cpu" else "wall"}
    images = [random_image(SIZE, SIZE, rng=rng) for _ in range(options.images)]
    reference = "torchvision v2, Pillow" if options.device == "cpu" else "kornia"
    rows = {
        "small": report(
            "32 px, in memory", reference, small(images, options.device), views=2 * options.images, **settings
        )
    }
    if options.device == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{i}.jpg" for i in range(options.files)]
            for path in paths:
                random_image(375, 500, rng=rng).save(path, quality=90)
            task = "224 px, from JPEG files", "lightly SimCLRTransform"
            rows["photos"] = report(*task, photos(paths), views=2 * options.files, **settings)
    n = {"images": options.images, "files": options.files, "views": 2}
    packages = "fullrank", "torchvision", "lightly", "kornia", "triton-augment", "pillow", "numpy"
    found = timing.environment(*packages, n=n, seed=0, device=options.device, **settings) | rows
    before = read_json(options.out) if options.out.exists() else {}
    write_json(options.out, before | (found if options.device == "cpu" else {f"on {options.device}": found}))


if __name__ == "__main__":
    main()
