"""The golden values: a run of the digits on one and two processes, its scores, every recipe, and the gradients of every
objective.

A refactor must leave them as they are. `python -m golden.compute` in `tests` writes `values.json` again; a commit that
changes a value says why.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

VALUES = Path(__file__).with_name("values.json")
SHAPES: dict[str, tuple] = dict.fromkeys("ZSPTQK", (2, 8, 6))
SHAPES |= {"R": (2, 8, 400), "queue": (12, 6), "c": (6,), "mu": (2, 6), "C": (6, 6)}
"""The shape of each tensor of an objective."""
COVARIANCES = {"corinfomax": {"R": (2, 6, 6)}, "tico": {"T": (2, 8, 6)}}
"""Objective → the tensors that have another shape."""


def golden_gradients() -> dict:
    """Return the terms of each objective in float64, and the inner product of each gradient with a fixed tensor."""
    from fullrank.objectives import OBJECTIVES
    from fullrank.objectives.signature import tensor_names

    values = {}
    for name, objective in OBJECTIVES.items():
        rng = np.random.default_rng(0)
        shapes = SHAPES | COVARIANCES.get(name, {})
        arrays = [rng.standard_normal(shapes[tensor]) for tensor in tensor_names(objective)]
        if name == "corinfomax":
            arrays[1] = arrays[1] @ arrays[1].swapaxes(-1, -2) / 6 + np.eye(6)
        if name == "tico":
            arrays[2] = arrays[2] @ arrays[2].T / 6
        if name == "wmse":
            arrays[0] = rng.standard_normal((2, 24, 6))
        tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
        torch.manual_seed(0)  # for the directions of LeJEPA
        terms = objective(*tensors)
        gradients = torch.autograd.grad(sum(terms.values()), tensors, allow_unused=True)
        projected = [0.0] * len(gradients)
        for k, gradient in enumerate(gradients):
            if gradient is not None:
                projected[k] = float((gradient * torch.tensor(rng.standard_normal(tuple(gradient.shape)))).sum())
        values[name] = {"terms": {term: value.item() for term, value in terms.items()}, "gradients": projected}
    return values


def golden_run(devices: int, folder: Path) -> dict:
    """Return the rows and the scores of a run of 22 steps in float64."""
    from fullrank import evaluate, pretrain
    from fullrank.recipes import MachineConfig, SpectrumConfig
    from small import small_recipe

    machine = MachineConfig(precision="64-true", devices=devices)
    recipe = small_recipe(log_every=1, spectrum=SpectrumConfig(samples=100, every=11), machine=machine)
    run = pretrain(recipe, out=folder / f"run-{devices}", console=Console(quiet=True))
    values = {"train": [row.loss for row in run.metrics.train]}
    values["probe"] = [row.probe_loss for row in run.metrics.train]
    spectrum = run.metrics.spectrum[-1]
    ranks = [part.effective_rank for part in (spectrum.backbone, spectrum.projector)]
    values["spectrum"] = [*ranks, spectrum.projector.condition_number]
    if devices == 1:
        evaluation = evaluate(run, store=False)
        values["scores"] = {
            f"{score.name}, {score.features}": score.value for score in evaluation.scores if score.metric == "accuracy"
        }
    return values


def golden_recipes() -> dict:
    """Return the fields of each recipe that differ from the default recipe."""
    from fullrank.recipes import RECIPES, Recipe, to_dict
    from fullrank.recipes.recipe import flatten

    usual = flatten(to_dict(Recipe()))
    return {"default": usual} | {
        name: {key: value for key, value in flatten(to_dict(recipe)).items() if usual.get(key, "absent") != value}
        for name, recipe in RECIPES.items()
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        runs = {str(devices): golden_run(devices, Path(folder)) for devices in (1, 2)}
    golden = {"gradients": golden_gradients(), "runs": runs, "recipes": golden_recipes()}
    VALUES.write_text(json.dumps(golden, indent=1) + "\n")
