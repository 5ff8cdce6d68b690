"""The general recipe on photos with few labels: does pretraining help, and does the invariance weight matter?

For each seed, 3,000 images of CIFAR-10 are a folder of photos without labels; 400 other training images and 1,000 test
images have labels. The general recipe is trained as it is, and with weight 1 of FroSSL's invariance term, the
objective's default. A linear probe on the 400 labels scores both runs before the first step and after each tenth. The
run of the recipe is then fine-tuned on the 400 labels, beside the same network from random weights. The epochs were set
by the time available: half an hour on two cores.
"""

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from fullrank import evaluate, finetune, open_images, pretrain
from fullrank.images import Images
from fullrank_papers import studies

UNLABELLED, LABELLED, TEST = 3000, 400, 1000


def measure(*, data: str, seeds: tuple[int, ...] = (0, 1, 2), epochs: int = 30, finetuning: int = 50) -> dict[str, Any]:
    """Pretrain, probe and fine-tune on a part of CIFAR-10 with few labels.

    Args:
        data: CIFAR-10.
        seeds: one choice of images and two runs for each.
        epochs: of pretraining.
        finetuning: epochs of fine-tuning.
    """
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure_seed(Path(folder), data, seed, epochs, finetuning)
    return {"rows": rows}


def measure_seed(folder: Path, data: str, seed: int, epochs: int, finetuning: int) -> list[dict[str, Any]]:
    """Return a row for each weight: the curve of the linear probe and, of the recipe's own run, the scores after
    fine-tuning.
    """
    write_photos(data, seed, folder)
    labels, rows = folder / "labels.csv", []
    for weight, changes in (("recipe", {}), ("1", {"hyper.invariance": 1.0})):
        settings: dict[str, Any] = {"seed": seed, "epochs": epochs} | changes
        out, quiet = folder / f"run-{weight}", Console(quiet=True)
        run = pretrain(folder / "photos", labelled=labels, out=out, console=quiet, **settings)
        scores = evaluate(run, labelled=labels, probes=["linear", "knn"], store=False).scores
        row: dict[str, Any] = {"seed": seed, "invariance": run.recipe.hyper["invariance"]}
        row["probe"] = [[each.epoch, each.accuracy] for each in run.metrics.online]
        row["scores"] = {f"{score.features}, {score.name}": score.value for score in scores}
        if not changes:
            tuned = finetune(run, labels, seed=seed, seeds=1, epochs=finetuning, store=False)
            row["fine-tuning"] = {s.features: s.value for s in tuned.scores if s.metric == "accuracy"}
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
        picture(splits["train"], i).save(folder / "photos" / f"{i}.png")
    chosen = [("train", i) for i in order[UNLABELLED : UNLABELLED + LABELLED].tolist()]
    chosen += [("test", i) for i in np.random.default_rng(seed).permutation(len(splits["test"]))[:TEST].tolist()]
    with open(folder / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split"])
        for split, i in chosen:
            images, name = splits[split], f"labelled/{split}-{i}.png"
            picture(images, i).save(folder / name)
            table.writerow([name, images.classes[images.labels[i]], split])


def picture(images: Images, i: int) -> Image.Image:
    found = images.open(i)
    assert isinstance(found, Image.Image)
    return found


if __name__ == "__main__":
    studies.run(measure, "photos")
