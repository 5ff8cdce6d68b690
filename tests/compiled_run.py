"""Train a small network with or without torch.compile: BACKEND (or none) FOLDER. Prints the losses."""

import functools
import json
import sys
from dataclasses import replace

import torch
from rich.console import Console

from fullrank import pretrain
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, SpectrumConfig


def main(backend, folder):
    if backend != "none":
        torch.compile = functools.partial(torch.compile, backend=backend)
    machine = replace(RECIPES["digits"].machine, compile=backend != "none", precision="32-true")
    recipe = replace(
        RECIPES["digits"],
        epochs=1,
        backbone=BackboneConfig(
            name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(32, 24)),
        spectrum=SpectrumConfig(samples=100, every=5),
        machine=machine,
    )
    run = pretrain(recipe, out=folder, console=Console(quiet=True))
    print(json.dumps([row.loss for row in run.metrics.train]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
