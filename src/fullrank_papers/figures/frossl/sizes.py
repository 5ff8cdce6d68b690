"""The sizes of Tables 2 and 3 and Fig. 4, and parts of the small recipes of other figures."""

from dataclasses import replace
from typing import Any

from fullrank.methods.config import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES
from fullrank_papers.figures.frossl.comparison import Size
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.trained import short_run

# The methods that size gpu trains first, and for longer.
LONG = ("frossl", "barlow_twins", "vicreg", "simclr", "byol", "nologs")


def narrow(channels: list[Any]) -> BackboneConfig:
    """Return a ResNet of four blocks with these channels."""
    arguments = {"channels": channels, "layers": [1, 1, 1, 1]}
    return BackboneConfig(name="resnet18", arguments=arguments, stem="small")


TINY = replace(
    short_run(RECIPES["digits"], epochs=2, warmup=0.5),
    name="digits-compared",
    data=replace(RECIPES["digits"].data, subset=256),
    backbone=narrow([8, 8, 16, 16]),
    projector=ProjectorConfig(widths=(32, 32)),
    hyper={"invariance": 4.0},  # 4 N/D, the paper's balance
    batch_size=32,
)

PROTOCOL = ("linear-sgd", "knn")
# The epochs of the paper's Table 3, and the first.
MARKS = (1.0, 3.0, 10.0, 30.0, 50.0, 100.0)

SMOKE_SIZE = Size(TINY, seeds=2, marks=(0.5, 1.0, 2.0), methods=("simclr", "nologs", "frossl"))
GPU_SIZE = Size(
    replace(RECIPES["cifar10"], epochs=100),
    seeds=1,
    marks=(*MARKS, 150.0, 200.0),
    epochs=dict.fromkeys(LONG, 200),
    methods=(*LONG, *(name for name in CONTENDERS if name not in LONG)),
    probes=("linear", *PROTOCOL),
)
# lightly's CIFAR-10 benchmark, with all of its methods that the tables have.
LIGHTLY_SIZE = Size(
    RECIPES["cifar10-frossl-lightly"],
    seeds=1,
    marks=(*map(float, range(1, 11)), *MARKS[3:], 200.0),
    methods=tuple(name for name in CONTENDERS if f"cifar10-{name}-lightly" in RECIPES),
)
CIFAR10_SIZE = Size(RECIPES["cifar10"], seeds=3, marks=(*MARKS, 200.0, 500.0, 1000.0), probes=PROTOCOL)
STL10_SIZE = replace(CIFAR10_SIZE, recipe=RECIPES["stl10"], marks=(*MARKS, 200.0, 500.0))

# The sizes of Table 2.
SIZES = {"smoke": SMOKE_SIZE, "gpu": GPU_SIZE, "gpu-lightly": LIGHTLY_SIZE, "paper": CIFAR10_SIZE}
SIZES |= {"paper-cifar100": replace(CIFAR10_SIZE, recipe=RECIPES["cifar100"]), "paper-stl10": STL10_SIZE}
