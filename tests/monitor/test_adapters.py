"""The monitor and the metric in the real libraries."""

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from fullrank.errors import UserError
from fullrank.monitor.lightning import CollapseCallback
from fullrank.monitor.torchmetrics import SpectrumMetric
from fullrank.nn import Loss
from fullrank.run import Run
from fullrank.spectrum import METRICS, Spectrum

N, D = 16, 4


class Siamese(LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, D))
        self.projection_head = nn.Linear(D, D)
        self.criterion = Loss("vicreg")

    def training_step(self, batch, _):
        return self.criterion(*(self.projection_head(self.backbone(x)) for x in batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(tmp_path, **options):
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", logger=CSVLogger(tmp_path), log_every_n_steps=1, **quiet, **options)


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore::FutureWarning")  # of lightning
@pytest.mark.parametrize("accumulated", [1, 2])
def test_lightning(tmp_path, accumulated):
    images = [(x, x + 0.1) for x in torch.randn(8 * N, 3, 2, 2)]
    callback = CollapseCallback("backbone", "projection_head", every=4, log_every=1, out=tmp_path / "run")
    fit = trainer(tmp_path, max_epochs=2, callbacks=[callback], accumulate_grad_batches=accumulated)
    fit.fit(Siamese(), DataLoader(images, batch_size=N))
    steps = 2 * 8 // accumulated
    run = Run(tmp_path / "run")
    assert [row.step for row in run.metrics.train] == [*range(1, steps + 1)]
    assert [(row.step, row.epoch) for row in run.metrics.spectrum][-1] == (steps, 2.0)
    assert run.metrics.train[0].lr == 0.01
    assert "backbone/effective_rank" in next(tmp_path.glob("**/metrics.csv")).read_text()
    assert not [hook for module in fit.model.modules() for hook in module._forward_hooks]


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore::FutureWarning")  # of lightning
def test_lightning_without_an_end_is_an_error_with_a_remedy(tmp_path):
    fit = trainer(tmp_path, max_epochs=-1, callbacks=[CollapseCallback()])
    with pytest.raises(UserError, match="no number of steps; give max_epochs"):
        fit.fit(Siamese(), DataLoader([(torch.randn(3, 2, 2),) * 2] * N, batch_size=N))


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_the_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from fullrank.monitor.transformers import CollapseCallback

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.projector, self.criterion = nn.Linear(12, D), nn.Linear(D, D), Loss("vicreg")

        def forward(self, x0, x1):
            return {"loss": self.criterion(*(self.projector(self.backbone(x)) for x in (x0, x1)))}

    rows = [{"x0": x, "x1": x + 0.1} for x in torch.randn(8 * N, 12)]
    callback = CollapseCallback("backbone", "projector", every=4, log_every=2, out=tmp_path / "run")
    options = {"per_device_train_batch_size": N, "report_to": [], "save_strategy": "no", "use_cpu": True}
    arguments = transformers.TrainingArguments(tmp_path / "trainer", num_train_epochs=2, disable_tqdm=True, **options)
    transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback]).train()
    run = Run(tmp_path / "run")
    assert [(row.step, row.epoch) for row in run.metrics.spectrum][-1] == (16, 2.0)
    assert [row.step for row in run.metrics.train] == [*range(2, 17, 2)]
    assert [row.lr > 0 for row in run.metrics.train] == [True] * 7 + [False]  # linear to zero
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["name"] == "run"


def test_the_metric_is_the_spectrum_of_all_batches():
    Z = torch.randn(60, D, dtype=torch.float64) + 5
    metrics = MetricCollection({"backbone": SpectrumMetric(D)})
    for batch in Z.split(17):
        at_once = metrics(backbone=batch, Z=batch)  # torchmetrics returns the value of the batch too
        assert at_once.keys() >= {"effective_rank"}
    found, spectrum = metrics.compute(), Spectrum.from_embeddings(Z)
    assert found["effective_rank"].item() == pytest.approx(spectrum.effective_rank())
    assert found.keys() == METRICS.keys()
    metrics.reset()
    metrics.update(Z=Z[:10])
    expected = Spectrum.from_embeddings(Z[:10]).effective_rank()
    assert metrics.compute()["effective_rank"].item() == pytest.approx(expected)
