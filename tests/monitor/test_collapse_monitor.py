"""The collapse monitor in a plain loop: what it measures, what it finds, and what it writes."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.monitor import CollapseMonitor
from fullrank.nn import Loss
from fullrank.report.page import write_report
from fullrank.run import Run
from fullrank.spectrum import Spectrum, intraclass_correlation
from process_group import in_float64

WORKER = Path(__file__).with_name("monitor_worker.py")
N, D, RATE = 32, 8, 0.03


def networks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, D), nn.BatchNorm1d(D)), nn.Linear(D, D)


def train(monitor, backbone, projector, *, steps, loss, start=0):
    """Train for some steps, with views of the same 512 images."""
    torch.manual_seed(1)
    X = torch.randn(512, 12)
    optimizer = torch.optim.Adam([*backbone.parameters(), *projector.parameters()], lr=RATE)
    for step in range(start, steps):
        batch = X[N * step % 512 :][:N]
        z0, z1 = (projector(backbone(batch + 0.2 * torch.randn_like(batch))) for _ in range(2))
        value = loss(z0, z1, step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        monitor.step(value, lr=RATE)
    monitor.close()
    return X


def healthy(z0, z1, step, criterion=Loss("vicreg")):  # noqa: B008
    return criterion(z0, z1)


def collapsing(z0, z1, step):
    return healthy(z0, z1, step) if step <= 150 else 1e3 * torch.cat([z0, z1])[:, 1:].square().mean()


def test_a_healthy_training_raises_no_alarm_and_a_planted_collapse_does(capsys):
    for loss, alarms in ((healthy, False), (collapsing, True)):
        backbone, projector = networks()
        monitor = CollapseMonitor(backbone, projector, steps=400)
        train(monitor, backbone, projector, steps=400, loss=loss)
        assert bool(monitor.alarms) == alarms
    first = monitor.alarms[0]
    assert first.alarm in ("complete collapse", "dimensional collapse")
    assert first.step > 150
    assert "views of the last steps, expected" in first.message
    assert "--" not in first.message + first.remedy  # no flags of `fullrank pretrain`
    assert f"warning at step {first.step}" in " ".join(capsys.readouterr().err.split())


def test_a_collapse_to_three_dimensions_is_found_which_lightlys_metric_calls_healthy():
    lightly = pytest.importorskip("lightly.utils.debug")
    projector, D = nn.Identity(), 64
    monitor = CollapseMonitor(projector, steps=100, every=20)
    torch.manual_seed(0)
    few = torch.linalg.qr(torch.randn(D, 3)).Q.mT
    for step in range(100):
        Z = torch.randn(256, 3) @ few if step >= 60 else torch.randn(256, D)
        Z = projector(Z + 1e-2 * torch.randn(256, D))
        assert lightly.std_of_l2_normalized(Z).item() > 0.8 / D**0.5  # 1/√D: healthy, by its documentation
        monitor.step()
    monitor.close()
    assert {(alarm.alarm, alarm.step) for alarm in monitor.alarms} == {("dimensional collapse", 80)}


def test_the_spectrum_is_that_of_the_first_views_of_the_last_steps(tmp_path):
    backbone, projector = networks()
    monitor, seen = CollapseMonitor(backbone, projector, steps=12, every=6, out=tmp_path / "run"), []
    projector.register_forward_hook(lambda module, args, Z: seen.append((args[0].detach(), Z.detach())))
    train(monitor, backbone, projector, steps=12, loss=healthy)
    run = Run(tmp_path / "run")
    assert [row.step for row in run.metrics.spectrum] == [6, 12]
    assert [row.epoch for row in run.metrics.spectrum] == [0.5, 1.0]
    for row, last in zip(run.metrics.spectrum, (6, 12), strict=True):
        steps = range(last - 3, last)  # three batches of 32 have ten embeddings for each of eight dimensions
        expected = Spectrum.from_embeddings(torch.cat([seen[2 * step][1] for step in steps]))
        assert row.projector.samples == 3 * N
        assert row.projector.effective_rank == pytest.approx(expected.effective_rank(), rel=1e-6)
        views = torch.stack([seen[2 * (last - 1) + v][0] for v in range(2)])
        assert row.intraclass_correlation == pytest.approx(intraclass_correlation(views))
    assert run.spectra.eigenvalues["backbone"].shape == (2, D)


def test_held_out_images_are_measured_in_eval_mode():
    backbone, projector = networks()
    monitor = CollapseMonitor(backbone, projector, steps=10, every=0)
    X, rows = torch.randn(100, 12), []
    monitor._write = rows.append
    with monitor.evaluation():
        for batch in X.split(30):
            assert not projector(backbone(batch)).requires_grad
    assert backbone.training
    with torch.no_grad():
        expected = Spectrum.from_embeddings(backbone.eval()(X))
    assert rows[0].backbone.samples == 100
    assert rows[0].backbone.effective_rank == pytest.approx(expected.effective_rank(), rel=1e-6)


def test_the_folder_is_a_run_that_the_report_shows(tmp_path):
    backbone, projector = networks()
    about, numbers = {"objective": "VICRegLoss", "optimizer": {"lr": 3e-3}}, []
    log = lambda row, step: numbers.append((step, row))  # noqa: E731
    monitor = CollapseMonitor(
        backbone, projector, steps=100, epochs=5.0, every=20, out=tmp_path / "mine", about=about, log=log
    )
    train(monitor, backbone, projector, steps=100, loss=healthy)
    page = write_report([tmp_path / "mine"], tmp_path / "report.html").read_text()
    assert "<h1>mine</h1>" in page
    assert "VICRegLoss" in page
    assert "fullrank evaluate file:WEIGHTS" in page  # the folder has no checkpoint to evaluate
    assert len(Run(tmp_path / "mine").metrics.train) == 10
    assert {step for step, row in numbers if "backbone/effective_rank" in row} == {20, 40, 60, 80, 100}
    with pytest.raises(UserError, match="already contains a run"):
        CollapseMonitor(backbone, projector, steps=100, out=tmp_path / "mine")


def test_a_continued_training_continues_the_log(tmp_path):
    backbone, projector = networks()
    options = {"steps": 100, "every": 20, "out": tmp_path / "run"}
    train(CollapseMonitor(backbone, projector, **options), backbone, projector, steps=70, loss=healthy)
    monitor = CollapseMonitor(backbone, projector, start=40, **options)
    train(monitor, backbone, projector, start=40, steps=100, loss=healthy)
    assert [row.step for row in Run(tmp_path / "run").metrics.spectrum] == [20, 40, 60, 80, 100]
    assert Run(tmp_path / "run").spectra.steps.tolist() == [20, 40, 60, 80, 100]


@pytest.mark.parametrize("where", ["loss", "embeddings"])
def test_numbers_that_are_not_finite_are_one_alarm(where, tmp_path):
    backbone, projector = networks()
    monitor = CollapseMonitor(backbone, projector, steps=60, log_every=1, every=10, out=tmp_path / "run")
    for step in range(60):
        projector(backbone(torch.full((N, 12), float("nan")) if where == "embeddings" else torch.randn(N, 12)))
        monitor.step(float("nan") if where == "loss" and step == 7 else 1.0)
    monitor.close()
    assert [(alarm.alarm, alarm.where) for alarm in monitor.alarms] == [("not finite", where)]
    assert monitor.alarms[0].step == (8 if where == "loss" else 1)
    assert all(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))


def test_passes_without_gradient_and_those_of_a_copy_do_not_count():
    backbone, projector = networks()
    monitor = CollapseMonitor(backbone, projector, steps=5, every=5)
    rows = []
    monitor._write = rows.append
    for _ in range(5):
        with torch.no_grad():
            backbone(torch.randn(7, 12))
        projector(backbone(torch.randn(N, 12)))
        monitor.step()
    assert rows[0].backbone.samples == 3 * N


def test_a_feature_map_is_averaged_and_another_output_is_an_error():
    backbone = nn.Conv2d(3, D, 2)
    monitor = CollapseMonitor(backbone, steps=1)
    backbone(torch.randn(N, 3, 4, 4))
    monitor.step()
    tokens = nn.Linear(4, D)
    CollapseMonitor(tokens, steps=1)
    with pytest.raises(UserError, match=r"returns a tensor \(2, 5, 8\), expected \(n, D\).*give embedding="):
        tokens(torch.randn(2, 5, 4))
    chosen = nn.Linear(4, D)
    CollapseMonitor(chosen, steps=1, embedding=lambda output: output[:, 0])
    chosen(torch.randn(2, 5, 4))


@pytest.mark.ddp
def test_two_processes_measure_what_one_measures(together, tmp_path):
    with in_float64():
        expected = runpy.run_path(str(WORKER))["main"]()
    for process in together(WORKER, 2):
        for name, values in expected.items():
            torch.testing.assert_close(process[name], values, rtol=1e-10, atol=1e-12, msg=name)
