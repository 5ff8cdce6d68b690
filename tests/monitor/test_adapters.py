"""The monitor and the metric in the real libraries."""

import json
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MetricCollection

from fullrank.errors import UserError
from fullrank.monitor import CollapseMonitor
from fullrank.monitor.lightning import CollapseCallback
from fullrank.monitor.torchmetrics import SpectrumMetric
from fullrank.nn import Loss
from fullrank.run import Run
from fullrank.spectrum import METRICS, Spectrum
from process_group import in_float64

WORKER = Path(__file__).with_name("adapter_worker.py")
N, D = 16, 4


class Siamese(LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, D))
        self.projection_head = nn.Linear(D, D)
        self.criterion, self.losses = Loss("vicreg"), []

    def training_step(self, batch, _):
        loss = self.criterion(*(self.projection_head(self.backbone(x)) for x in batch))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        halves = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halves, "interval": "step"}}


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield (torch.randn(3, 2, 2),) * 2


def trainer(tmp_path, **options):
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", logger=CSVLogger(tmp_path), log_every_n_steps=1, **quiet, **options)


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore::FutureWarning")  # of lightning
@pytest.mark.parametrize(("accumulated", "length"), [(1, {"max_epochs": 2}), (2, {"max_epochs": -1, "max_steps": 6})])
def test_lightning(tmp_path, accumulated, length):
    images = [(x, x + 0.1) for x in torch.randn(5 * N, 3, 2, 2)]
    held_out = DataLoader(torch.randn(3 * N, 3, 2, 2), batch_size=N)
    callback = CollapseCallback(held_out, "backbone", "projection_head", every=4, log_every=1, out=tmp_path / "run")
    fit = trainer(tmp_path, callbacks=[callback], accumulate_grad_batches=accumulated, **length)
    fit.fit(module := Siamese(), DataLoader(images, batch_size=N))
    run, losses = Run(tmp_path / "run"), module.losses
    if accumulated == 2:  # the last batch of an epoch is a step of its own
        parts = ((0, 2), (2, 4), (4, 5), (5, 7), (7, 9), (9, 10))
        losses = [sum(losses[first:end]) / (end - first) for first, end in parts]
    steps = len(losses)
    assert [row.loss for row in run.metrics.train] == pytest.approx(losses, rel=1e-6)
    assert [row.step for row in run.metrics.train] == [*range(1, steps + 1)]
    assert [(row.step, row.epoch) for row in run.metrics.spectrum][-1] == (steps, 2.0)
    assert [row.lr for row in run.metrics.train[:3]] == pytest.approx([0.01, 0.005, 0.0025])  # of the step itself
    assert {row.backbone.samples for row in run.metrics.spectrum} == {3 * N}
    assert "backbone/effective_rank" in next(tmp_path.glob("**/metrics.csv")).read_text()


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore::FutureWarning", "ignore:.*checkpoint")  # of lightning
def test_a_training_of_lightning_that_goes_on_from_a_checkpoint_goes_on_with_the_log(tmp_path):
    batches = DataLoader([(x, x + 0.1) for x in torch.randn(5 * N, 3, 2, 2)], batch_size=N)
    for epochs, checkpoint in ((1, None), (2, tmp_path / "last.ckpt")):
        callback = CollapseCallback([torch.randn(N, 3, 2, 2)], every=5, log_every=1, out=tmp_path / "run")
        fit = trainer(tmp_path, callbacks=[callback], max_epochs=epochs)
        fit.fit(Siamese(), batches, ckpt_path=checkpoint)
        fit.save_checkpoint(tmp_path / "last.ckpt")
    metrics = Run(tmp_path / "run").metrics
    assert [row.step for row in metrics.train] == [*range(1, 11)]
    assert [row.step for row in metrics.spectrum] == [0, 5, 10]


@pytest.mark.filterwarnings("ignore")  # of lightly and lightning
@pytest.mark.parametrize("collapses", [False, True])
def test_a_collapse_in_a_training_of_lightly_that_lightlys_metric_calls_healthy(tmp_path, collapses):
    lightly = pytest.importorskip("lightly.loss")
    from lightly.data import LightlyDataset
    from lightly.models.modules.heads import VICRegProjectionHead
    from lightly.transforms.multi_view_transform import MultiViewTransform
    from lightly.utils.debug import std_of_l2_normalized
    from sklearn.datasets import load_digits

    class VICReg(LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
            self.projection_head = VICRegProjectionHead(64, 64, 16, num_layers=2)
            self.criterion = lightly.VICRegLoss(nu_param=0.0 if collapses else 1.0)

        def training_step(self, batch, _):
            (x0, x1), _, _ = batch
            return self.criterion(self.projection_head(self.backbone(x0)), self.projection_head(self.backbone(x1)))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    class Digits:
        def __len__(self):
            return len(digits)

        def __getitem__(self, k):
            return self.transform(digits[k]), 0

    torch.manual_seed(0)
    digits = torch.tensor(load_digits().images[:1024], dtype=torch.float32) / 16
    noise = lambda x: x + 0.3 * torch.randn_like(x)  # noqa: E731
    pairs = LightlyDataset.from_torch_dataset(Digits(), transform=MultiViewTransform([noise, noise]))
    held_out = DataLoader(digits, batch_size=256)
    callback = CollapseCallback(held_out, "backbone", "projection_head")
    module = VICReg()
    trainer(tmp_path, callbacks=[callback], max_epochs=40).fit(module, DataLoader(pairs, 128, shuffle=True))
    with torch.no_grad():
        Z = module.eval().projection_head(module.backbone(digits))
    assert std_of_l2_normalized(Z).item() * 16**0.5 == pytest.approx(0.98, abs=0.05)  # 1: healthy, by its documentation
    assert {alarm.alarm for alarm in callback.monitor.alarms} == ({"dimensional collapse"} if collapses else set())
    assert Spectrum.from_embeddings(Z).effective_rank() == pytest.approx(2.2 if collapses else 9.1, rel=0.2)


@pytest.mark.filterwarnings("ignore:.*num_workers", "ignore::FutureWarning")  # of lightning
def test_lightning_without_an_end_or_a_submodule_is_an_error_with_a_remedy(tmp_path):
    batches, held_out = DataLoader([(torch.randn(3, 2, 2),) * 2] * N, batch_size=N), [torch.randn(N, 3, 2, 2)]
    endless = DataLoader(Endless(), batch_size=N)
    for epochs, images in ((-1, batches), (1, endless)):
        fit = trainer(tmp_path, max_epochs=epochs, callbacks=[CollapseCallback(held_out)])
        with pytest.raises(UserError, match="no number of steps; give max_epochs"):
            fit.fit(Siamese(), images)
    with pytest.raises(UserError, match="no attribute `trunk`; name submodules"):
        trainer(tmp_path, max_epochs=1, callbacks=[CollapseCallback(held_out, "trunk")]).fit(Siamese(), batches)
    fit = trainer(tmp_path, max_time={"seconds": 2}, max_epochs=-1, callbacks=[CollapseCallback(held_out, steps=4)])
    fit.fit(Siamese(), batches)


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
    held_out = torch.randn(3, N, 12).unbind()
    callback = CollapseCallback(held_out, "backbone", "projector", every=4, out=tmp_path / "run")
    options = {"per_device_train_batch_size": N, "report_to": [], "save_strategy": "no", "use_cpu": True}
    options |= {"logging_steps": 2, "learning_rate": 0.016}
    arguments = transformers.TrainingArguments(tmp_path / "trainer", num_train_epochs=2, disable_tqdm=True, **options)
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    run = Run(tmp_path / "run")
    assert [(row.step, row.epoch) for row in run.metrics.spectrum][-1] == (16, 2.0)
    assert [row.step for row in run.metrics.train] == [*range(2, 17, 2)]
    assert [row.lr for row in run.metrics.train] == pytest.approx([0.001 * (17 - step) for step in range(2, 17, 2)])
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert [row.loss for row in run.metrics.train] == pytest.approx(logged)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["name"] == "run"


@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore")  # of lightning and transformers
def test_on_two_processes_with_different_data_the_callbacks_measure_and_train_as_on_one(together):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    with in_float64():
        expected = runpy.run_path(str(WORKER))["main"]()
    first, second = together(WORKER)
    for name, values in expected.items():
        torch.testing.assert_close(first[name], values, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")
        if name.endswith("logged"):
            assert second[name] == 0  # only the first process logs
        elif not name.endswith("ranks"):
            torch.testing.assert_close(second[name], values, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


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
    with pytest.raises(UserError, match="there are no embeddings"), warnings.catch_warnings(action="ignore"):
        metrics.compute()
    metrics.update(Z=Z[:10])
    expected = Spectrum.from_embeddings(Z[:10]).effective_rank()
    assert metrics.compute()["effective_rank"].item() == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_the_numbers(name, tmp_path, monkeypatch):
    for variable, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", tmp_path), ("TRACKIO_DIR", tmp_path)):
        monkeypatch.setenv(variable, str(value))
    tracker = pytest.importorskip(name)  # trackio allows no new Pillow, so that it is not installed with the tests
    run = tracker.init(project="tests")
    monitor = CollapseMonitor(steps=20, every=10, out=tmp_path / "run", log=tracker.log)
    for _ in range(20):
        monitor.step(1.0, torch.randn(N, 4))
    monitor.close()
    tracker.log({"end": 1}, step=21)  # wandb summarises a step once the next one begins
    rows = [dict(run.summary)] if name == "wandb" else []
    tracker.finish()
    rows += tracker.SQLiteStorage.get_logs("tests", run.name) if name == "trackio" else []
    logged = {key: value for row in rows for key, value in row.items()}
    expected = Run(tmp_path / "run").metrics.spectrum[-1].backbone.effective_rank
    assert logged["backbone/effective_rank"] == pytest.approx(expected)
