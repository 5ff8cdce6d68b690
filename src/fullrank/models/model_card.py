"""The model card of an exported backbone: how to load it, what it was trained on, its scores and its spectrum."""

import json
import os
from pathlib import Path
from typing import Any

import jinja2

from fullrank.files import parse_json, read_jsonl, read_text
from fullrank.models.model import Model
from fullrank.recipes import to_dict


def model_card(model: Model, *, classes: int = 0) -> str:
    """Return README.md with its metadata for the hub.

    The card has no path of this computer: of a local source of images, it names the last folder.

    Args:
        model: a loaded model.
        classes: the number of classes of a classifier beside the weights; 0: there is none.
    """
    recipe: dict[str, Any] = to_dict(model.recipe) if model.recipe else {}
    if recipe:
        recipe["data"]["source"], recipe["init"] = public_name(recipe["data"]["source"]), public_name(recipe["init"])
    environment = jinja2.Environment()
    environment.filters |= {"public": public_name, "percent": lambda share: f"{100 * share:.1f}"}
    template = environment.from_string(Path(__file__).with_name("model_card.md.j2").read_text("utf-8"))
    name = os.path.basename(model.name.rstrip("/").partition("@")[0]) or "backbone"
    parts = {"model": model, "preprocess": model.preprocess, "recipe": recipe, "json": json.dumps(recipe, indent=2)}
    return template.render(name=name, classes=classes, **parts, **measured(model))


def measured(model: Model) -> dict[str, Any]:
    """Return the scores of a checkpoint of a run, each after its entry in evaluation.json, and the last spectra up to
    it, of metrics.jsonl.
    """
    run = model.path or Path(model.name.rpartition("@")[0])  # RUN@STEP
    if model.recipe is None or model.step is None or not run.is_dir():
        return {}
    file = run / "evaluation.json"
    entries = parse_json(read_text(file))["evaluations"] if file.exists() else []
    of_step = [entry for entry in entries if entry.get("step") == model.step]
    by_class = ("balanced accuracy", "AUROC")
    scores = [(entry, score) for entry in of_step for score in entry["scores"] if score["metric"] not in by_class]
    rows, _ = read_jsonl(run / "metrics.jsonl")
    spectra = [row for row in rows if row["kind"] == "spectrum" and row["step"] <= model.step]
    return {"scores": scores, "spectrum": spectra[-1] if spectra else None}


def public_name(source: str) -> str:
    """Return the name of a source or of a MODEL without the folders of this computer.

    >>> public_name("/home/me/photos[test]"), public_name("hf:uoft-cs/cifar10[test]"), public_name("folder:a/b")
    ('photos[test]', 'hf:uoft-cs/cifar10[test]', 'b')
    """
    return source if source.startswith(("hf:", "hf-hub:", "timm:")) else os.path.basename(source.rstrip("/")) or source
