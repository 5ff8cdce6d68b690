"""What monitors and a metric measure on one process, or on each of several with different data."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from fullrank.distributed import rank_slice, world_size
from fullrank.errors import UserError
from fullrank.monitor import CollapseMonitor
from fullrank.monitor.torchmetrics import SpectrumMetric
from fullrank.run.rows import SpectrumRow

N, D = 24, 6


class Recorder(CollapseMonitor):
    """A monitor that keeps its rows."""

    def _write(self, row):
        self.rows = [*getattr(self, "rows", []), row]
        super()._write(row)


def main(fabric=None):
    X = torch.randn(10, 2, N, 12, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 3, N)[:, None]
    torch.manual_seed(0)
    backbone, projector, metric = nn.Linear(12, D), nn.Linear(D, D), SpectrumMetric(D)
    wrapped = DistributedDataParallel(backbone) if world_size() > 1 else backbone
    held_out = {"held_out": [*X.flatten(0, 2).split(70)], "backbone": wrapped, "projector": projector}  # seven batches
    monitors = [Recorder(steps=10, every=5, log_every=2, **options) for options in ({}, held_out)]
    if world_size() > 1:
        shuffled = DataLoader(X.flatten(0, 2), batch_size=70, shuffle=True)
        for images, message in ((shuffled, "or is shuffled"), ([X[0, 0]], "fewer batches than there are processes")):
            with pytest.raises(UserError, match=message):
                CollapseMonitor(steps=10, held_out=images, backbone=wrapped)
    for step, views in enumerate(X):
        R = backbone(views[:, rank_slice(N)])
        Z = projector(R)
        loss = {"loss": (1e3 if step == 9 else 1.0) * Z.square().mean()}  # the last one is an alarm
        metric.update(R[0].detach())
        monitors[0].step(loss, R, Z)
        monitors[1].step(loss)
    found = {"metric": metric.compute()["effective_rank"]}
    for name, monitor in zip(("steps", "held out"), monitors, strict=True):
        spectra = [row for row in monitor.rows if isinstance(row, SpectrumRow)]
        numbers = [[row.backbone.effective_rank, row.projector.entropy] for row in spectra]
        found |= {name: torch.tensor(numbers), f"{name}, n": torch.tensor([row.backbone.samples for row in spectra])}
        found[f"{name}, losses"] = torch.tensor([row.loss for row in monitor.rows if row not in spectra])
        found[f"{name}, alarms"] = torch.tensor([alarm.observed for alarm in monitor.alarms])
        found[f"{name}, correlation"] = torch.tensor([row.intraclass_correlation or 0 for row in spectra])
    return found
