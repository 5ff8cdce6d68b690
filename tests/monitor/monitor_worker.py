"""What a monitor and a metric measure on one process, or on each of several with different data."""

import torch
from torch import nn

from fullrank.distributed import rank_slice
from fullrank.monitor import CollapseMonitor
from fullrank.monitor.torchmetrics import SpectrumMetric

N, D = 24, 6


def main(fabric=None):
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(10, 2, N, 12, generator=rng) * torch.linspace(1, 3, N)[:, None]
    torch.manual_seed(0)
    backbone, projector = nn.Linear(12, D), nn.Linear(D, D)
    monitor, metric, rows = CollapseMonitor(backbone, projector, steps=10, every=5), SpectrumMetric(D), []
    monitor._write = rows.append
    for views in X:
        for view in views:
            R = backbone(view[rank_slice(N)])
            projector(R)
            metric.update(R.detach())
        monitor.step()
    numbers = [[row.backbone.effective_rank, row.projector.entropy, row.intraclass_correlation] for row in rows]
    samples = [row.backbone.samples for row in rows]
    found = {"numbers": torch.tensor(numbers), "samples": torch.tensor(samples)}
    return found | {"metric": metric.compute()["effective_rank"], "epochs": torch.tensor([row.epoch for row in rows])}
