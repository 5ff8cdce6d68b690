"""Measure the collapse monitor: its alarms beside those of `fullrank pretrain`, and what it costs a training loop.

    python -m benchmarks.monitor    # half an hour on one core

A monitor observes healthy and degraded runs of the study of the alarm, on the digits (`fullrank_papers.studies.alarm`).
It sees only the embeddings of the training, and the run measures held-out images, so their alarms can differ. The cost
is that of a step of a ResNet-18 at 32 px with the monitor, over the same step without. Writes
`benchmarks/results/monitor.json`.
"""

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import tyro
from rich.console import Console
from torch import nn

import fullrank
from benchmarks import timing
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig, ProjectorConfig, build_projector
from fullrank.methods.backbones import build_backbone, feature_dim
from fullrank.monitor import CollapseMonitor
from fullrank.nn import Loss
from fullrank.recipes import Recipe
from fullrank.run import Run, write_json
from fullrank.run.logger import RunLogger
from fullrank_papers.studies.alarm import INDUCED_FAILURES, healthy

OBJECTIVES = ("frossl", "simclr", "vicreg", "barlow_twins", "byol", "ivne")
SIZES = [(128, 256), (128, 2048), (256, 2048)]  # N, D
Row = dict[str, Any]


def main(*, rounds: int = 12, seed: int = 1, out: Path = timing.RESULTS / "monitor.json") -> None:
    """Measure costs and alarms.

    Args:
        rounds: of the timing.
        seed: of the runs; the thresholds were chosen on seeds 0 to 2.
        out: the JSON file.
    """
    torch.set_num_threads(1)
    costs = [cost(N, D, rounds=rounds) for N, D in SIZES]
    with tempfile.TemporaryDirectory() as folder:
        runs = [observe(Path(folder) / str(k), *job) for k, job in enumerate(jobs(seed))]
    write_json(out, {"environment": timing.environment("timm"), "cost": costs, "runs": runs})
    print(*costs, *runs, sep="\n")


def jobs(seed: int) -> list[tuple[str, str, Recipe]]:
    """Return kind, objective and recipe of each run."""
    found = [("healthy", name, healthy(name, seed)) for name in OBJECTIVES]
    for kind, (_, changes) in INDUCED_FAILURES.items():
        found += [(kind, name, change(healthy(name, seed))) for name, change in changes.items() if name in OBJECTIVES]
    return found


def observe(path: Path, kind: str, name: str, recipe: Recipe) -> Row:
    """Train a run that a monitor observes, and return the alarms of both."""
    after_step, monitors = RunLogger.after_step, []

    def step(self: RunLogger, step: Any) -> None:
        if not monitors:
            warmup = round(recipe.schedule.warmup * self.run.steps_per_epoch)
            monitors.append(CollapseMonitor(steps=self.run.total, warmup=warmup))
        monitors[0].step(step.terms, step.R, step.embeddings["Z"][: len(step.R)])
        after_step(self, step)

    with mock.patch.object(RunLogger, "after_step", step):
        try:
            fullrank.pretrain(recipe, out=path, console=Console(quiet=True))
        except UserError:  # NaN ends the run
            monitors[0].close()
    alarms = {"run": Run(path).metrics.alarms, "monitor": monitors[0].alarms}
    return {"kind": kind, "objective": name} | {
        who: sorted({f"{alarm.alarm}, {alarm.where}" for alarm in found}) for who, found in alarms.items()
    }


def cost(N: int, D: int, *, rounds: int) -> Row:
    """Return the time of a training with the monitor over the time without; 50 steps have one evaluation."""
    backbone = build_backbone(BackboneConfig(name="resnet18", stem="small", arguments={"channels": [16, 32, 64, 128]}))
    projector = build_projector(ProjectorConfig(widths=(D, D)), feature_dim(backbone))
    networks, criterion = nn.Sequential(backbone, projector), Loss("vicreg")
    optimizer, views = torch.optim.SGD(networks.parameters(), lr=1e-3), torch.randn(2, N, 3, 32, 32)

    def train(monitor: CollapseMonitor | None = None, steps: int = 10) -> None:
        for _ in range(steps):
            R = torch.stack([*map(backbone, views)])
            Z = torch.stack([*map(projector, R)])
            loss = criterion(Z)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor:
                monitor.step(loss, R, Z)
        if monitor:
            monitor.close()

    works = {"without": train, "with": lambda: train(CollapseMonitor(steps=1000, every=10))}
    times = timing.measure(works, rounds=rounds, clock="cpu")
    return {"N": N, "D": D, "over": times["with"].median / times["without"].median, **times}


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
