"""The general recipe on photos with few labels: does pretraining help, and does the invariance weight matter?

    python benchmarks/photos.py --data PATH/TO/cifar10        # half an hour on two cores

For each seed, 3,000 images of CIFAR-10 are a folder of photos without labels; 400 other training images and 1,000 test
images have labels. The general recipe is trained as it is, and with weight 1 of FroSSL's invariance term, the
objective's default. A linear probe on the 400 labels scores both runs before the first step and after each tenth. The
run of the recipe is then fine-tuned on the 400 labels, beside the same network from random weights. The epochs were set
by the time available.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import timing
from fullrank import evaluate, finetune, open_images, pretrain
from fullrank.run import write_json

UNLABELLED, LABELLED, TEST = 3000, 400, 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=30, help="epochs of pretraining")
    parser.add_argument("--finetuning", type=int, default=50, help="epochs of fine-tuning")
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "photos.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: getattr(options, name) for name in ("seeds", "epochs", "finetuning")}
    settings |= {"unlabelled": UNLABELLED, "labelled": LABELLED, "test": TEST}
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(seed, options, Path(folder))
        write_json(options.out, {"environment": timing.environment("timm", **settings), "rows": rows})


def measure(seed: int, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each weight: the curve of the linear probe and, of the recipe's own run, the scores after
    fine-tuning."""
    write_photos(options.data, seed, folder)
    rows = []
    for weight in (None, 1.0):
        changes = {} if weight is None else {"hyper.invariance": weight}
        run = pretrain(
            folder / "photos",
            labelled=folder / "labels.csv",
            out=folder / f"run-{weight}",
            epochs=options.epochs,
            console=Console(quiet=True),
            **{"seed": seed, **changes},
        )
        scores = evaluate(run, labelled=folder / "labels.csv", probes=["linear", "knn"], store=False).scores
        row: dict[str, Any] = {
            "seed": seed,
            "invariance": run.recipe.hyper["invariance"],
            "precision": run.recipe.machine.precision,
            "probe": [[each.epoch, each.accuracy] for each in run.metrics.online],
            "scores": {f"{score.features}, {score.probe}": score.accuracy for score in scores},
        }
        if weight is None:
            tuned = finetune(run, folder / "labels.csv", seed=seed, seeds=1, epochs=options.finetuning, store=False)
            row["fine-tuning"] = {score.features: score.accuracy for score in tuned.scores}
        Console().print(row)
        rows.append(row)
    return rows


def write_photos(data: str, seed: int, folder: Path) -> None:
    """Write a folder of unlabelled images, and a table of the paths of labelled ones."""
    splits = open_images(data)
    order = np.random.default_rng(seed).permutation(len(splits["train"]))
    (folder / "photos").mkdir()
    (folder / "labelled").mkdir()
    for i in order[:UNLABELLED].tolist():
        splits["train"].open(i).save(folder / "photos" / f"{i}.png")
    chosen = [("train", i) for i in order[UNLABELLED : UNLABELLED + LABELLED].tolist()]
    chosen += [("test", i) for i in np.random.default_rng(seed).permutation(len(splits["test"]))[:TEST].tolist()]
    with open(folder / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split"])
        for split, i in chosen:
            images, name = splits[split], f"labelled/{split}-{i}.png"
            images.open(i).save(folder / name)
            table.writerow([name, images.classes[images.labels[i]], split])


if __name__ == "__main__":
    main()
