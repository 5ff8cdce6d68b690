"""Compare fine-tuning, a classifier on frozen features, and the same network from scratch, on few labelled digits.

    python benchmarks/finetune.py        # some minutes on one thread

The functions are those of docs/finetuning.md, executed from the page. For each seed: pretrain without labels on the
digits of the training split, draw the labelled images from the same split, and score all ways on the held-out digits.
The network has the standard stem, because timm alone has to load it; therefore the digits are enlarged to 32 px. The
epochs were set by the time available.
"""

import argparse
import re
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from rich.console import Console
from torch.utils.data import TensorDataset

import timing
from fullrank import RECIPES, Model, export, load, pretrain
from fullrank.images import train_and_test
from fullrank.run import write_json

PAGE = Path(__file__).parent.parent / "docs" / "finetuning.md"
SIZE = 32


def page_functions() -> dict[str, Any]:
    """Return the functions that the page defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if "def " in block:
            exec(block, names)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labels", type=int, nargs="+", default=[10], help="labelled images for each class")
    parser.add_argument("--pretraining", type=int, default=10, help="epochs of pretraining")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of fine-tuning")
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "finetune.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, list[float]]] = {str(count): {} for count in options.labels}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for count, scores in measure(seed, options, Path(folder)).items():
                for way, score in scores.items():
                    rows[str(count)].setdefault(way, []).append(score)
                    Console().print(f"seed {seed}, {count} labels a class, {way}: {score:.3f}")
    settings = {name: getattr(options, name) for name in ("seeds", "labels", "pretraining", "epochs")}
    table = {count: {way: summary(values) for way, values in ways.items()} for count, ways in rows.items()}
    write_json(options.out, {"environment": timing.environment("timm", "scikit-learn", **settings), "accuracy": table})


def summary(values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {
        "mean": round(statistics.mean(values), 4),
        "sd": spread and round(spread, 4),
        "n": len(values),
        "values": values,
    }


def measure(seed: int, options: argparse.Namespace, folder: Path) -> dict[int, dict[str, float]]:
    """Return labels per class -> way -> accuracy on the held-out digits."""
    page, base = page_functions(), RECIPES["digits"]
    views = tuple(replace(view, size=SIZE) for view in base.views)
    recipe = replace(
        base, backbone=replace(base.backbone, stem="standard"), views=views, epochs=options.pretraining, seed=seed
    )
    run = pretrain(recipe, out=folder / "run", console=Console(quiet=True))
    model = load(run.path)
    splits = train_and_test("digits", seed=recipe.split_seed)
    train, test = tensors(model, splits.train), tensors(model, splits.test)
    export(model, folder / "backbone")
    results = {}
    for count in options.labels:
        chosen = draw(train[1], count, seed)
        labelled = TensorDataset(train[0][chosen], train[1][chosen])
        results[count] = {
            way: score(page, folder, labelled, TensorDataset(*test), pretrained, seed, options.epochs)
            for way, pretrained in (("from scratch", False), ("fine-tuned", True))
        }
        images = [splits.train.open(int(i)) for i in chosen]
        classifier = page["search"](str(run.path), images, train[1][chosen].numpy())
        results[count]["frozen features"] = float(
            classifier.score([splits.test.open(i) for i in range(len(splits.test))], test[1].numpy())
        )
    return results


def score(page: dict[str, Any], folder: Path, train: Any, test: Any, pretrained: bool, seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    network = timm.create_model(f"local-dir:{folder / 'backbone'}", pretrained=pretrained, num_classes=10)
    return page["accuracy"](page["fine_tune"](network, train, epochs=epochs), test)


def tensors(model: Model, images: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised images and their labels."""
    pixels = torch.stack([model.preprocess.pixels(images.open(i)) for i in range(len(images))])
    return model.preprocess.normalize(pixels), torch.from_numpy(np.asarray(images.labels))


def draw(labels: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Return `count` random images of each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[labels[order] == label][:count] for label in labels.unique()])


if __name__ == "__main__":
    main()
