"""Measure what a linear probe on augmented images costs: a pass with random crops against the features without
augmentation.

    python benchmarks/augmented.py        # a few minutes on one thread

`--linear-sgd.views K` needs K passes over the training images, each with a forward pass of the backbone. The images are
random pixels of 32 px in memory, and the networks the ResNet-18 of CIFAR and the narrow network of the recipe
cifar10-small. Times are CPU time on one thread per image; `epoch` is the training of the classifier itself.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

import timing
from fullrank.evaluation import extract_features
from fullrank.evaluation.augmented import Augmentation, augmented_features
from fullrank.evaluation.linear import Head, Schedule, fit_heads
from fullrank.images import MemoryImages, Preprocess
from fullrank.methods import BackboneConfig, build_backbone
from fullrank.recipes import RECIPES
from fullrank.run import write_json

NETWORKS = {
    "ResNet-18": BackboneConfig(name="resnet18", stem="small"),
    "cifar10-small": RECIPES["cifar10-small"].backbone,
}
CLASSES = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "augmented.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    rows = {name: measure(config, arguments.images, arguments.rounds) for name, config in NETWORKS.items()}
    write_json(arguments.out, {"environment": timing.environment(images=arguments.images), "networks": rows})
    for name, row in rows.items():
        Console().print(f"{name}: {row}")


def measure(config: BackboneConfig, n: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds per image of an extraction, a pass with augmentation and an epoch of the classifier."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    images = MemoryImages(pixels, labels, tuple(map(str, range(n))), ())
    preprocess, crop = Preprocess(3, 32, (0.5,) * 3, (0.25,) * 3), Augmentation((0.08, 1.0), flip=0.5)
    network = build_backbone(config, channels=3).eval()
    X = extract_features(network, images, preprocess).X
    head = Head(
        X, labels, CLASSES, lambda weights: torch.optim.SGD(weights, lr=0.1), Schedule(1, (), 0.1, 256), generator
    )
    works = {
        "features": lambda: extract_features(network, images, preprocess),
        "pass": lambda: augmented_features(network, images, preprocess, crop, 0, seed=0),
        "epoch": lambda: fit_heads(X, labels, [head], 1),
    }
    times = timing.measure(works, rounds=rounds, clock="cpu")
    row = {name: round(1000 * time.median / n, 4) for name, time in times.items()}
    return {
        "D": X.shape[1],
        "ms_per_image": row,
        "pass_over_features": round(times["pass"].median / times["features"].median, 3),
    }


if __name__ == "__main__":
    main()
