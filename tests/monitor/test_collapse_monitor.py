"""The collapse monitor in a plain loop: what it measures, what it finds, and what it writes."""

import json
import runpy
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fullrank.errors import UserError
from fullrank.monitor import CollapseMonitor
from fullrank.monitor.collapse_monitor import embed_held_out, pooled
from fullrank.nn import L2Normalize, Loss
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
    """Train for some steps with views of the same 512 images; return representations and embeddings of each step."""
    torch.manual_seed(1)
    X, seen = torch.randn(512, 12), []
    optimizer = torch.optim.Adam([*backbone.parameters(), *projector.parameters()], lr=RATE)
    for step in range(start, steps):
        batch = X[N * step % 512 :][:N]
        R = torch.stack([backbone(batch + 0.2 * torch.randn_like(batch)) for _ in range(2)])
        Z = projector(R.flatten(0, 1)).unflatten(0, (2, N))
        value = loss(*Z, step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        monitor.step(value, R, Z, lr=RATE)
        seen.append((R.detach(), Z.detach()))
    monitor.close()
    return seen


def healthy(z0, z1, step, criterion=Loss("vicreg")):  # noqa: B008
    return criterion(z0, z1)


def collapsing(z0, z1, step):
    return healthy(z0, z1, step) if step <= 150 else 1e3 * torch.cat([z0, z1])[:, 1:].square().mean()


def test_a_healthy_training_raises_no_alarm_and_a_planted_collapse_does(capsys):
    for loss, alarms in ((healthy, False), (collapsing, True)):
        backbone, projector = networks()
        monitor = CollapseMonitor(steps=400)
        train(monitor, backbone, projector, steps=400, loss=loss)
        assert bool(monitor.alarms) == alarms
    first = monitor.alarms[0]
    assert first.alarm in ("complete collapse", "dimensional collapse")
    assert first.step > 150
    assert "images of the last steps, expected" in first.message
    assert "--" not in first.message + first.remedy  # no flags of `fullrank pretrain`
    assert f"warning at step {first.step}" in " ".join(capsys.readouterr().err.split())


def test_a_term_without_weight_is_the_cause_if_the_monitor_has_the_loss():
    criterion = Loss("vicreg", variance=0.0, covariance=0.0)
    for given, cause in ((lambda: criterion, "missing term"), (lambda: criterion.terms, "large steps")):
        backbone, projector = networks()
        monitor, optimizer = CollapseMonitor(steps=300), torch.optim.AdamW(projector.parameters(), lr=RATE)
        for _ in range(300):
            R = backbone(torch.randn(N, 12)) + 0.1 * torch.randn(2, N, D)
            Z = projector(R)
            optimizer.zero_grad()
            criterion(Z).backward()
            optimizer.step()
            monitor.step(given(), R, Z)
        assert {alarm.cause for alarm in monitor.alarms} == {cause}
        assert all("--" not in alarm.remedy for alarm in monitor.alarms)


def test_the_spectrum_is_that_of_the_first_views_of_the_last_steps(tmp_path):
    backbone, projector = networks()
    monitor = CollapseMonitor(steps=12, every=6, out=tmp_path / "run")
    seen = train(monitor, backbone, projector, steps=12, loss=healthy)
    run = Run(tmp_path / "run")
    assert [row.step for row in run.metrics.spectrum] == [6, 12]
    assert [row.epoch for row in run.metrics.spectrum] == [0.5, 1.0]
    for row, last in zip(run.metrics.spectrum, (6, 12), strict=True):
        steps = range(last - 3, last)  # three batches of 32 have ten embeddings for each of eight dimensions
        expected = Spectrum.from_embeddings(torch.cat([seen[step][1][0] for step in steps]))
        assert row.projector.samples == 3 * N
        assert row.projector.effective_rank == pytest.approx(expected.effective_rank(), rel=1e-6)
        assert row.intraclass_correlation == pytest.approx(intraclass_correlation(seen[last - 1][0]))
    assert run.spectra.eigenvalues["backbone"].shape == (2, D)


def test_held_out_images_are_measured_in_eval_mode_and_change_nothing(tmp_path):
    backbone, projector = networks()
    before, X = deepcopy(backbone.state_dict()), torch.randn(100, 12)
    loader = DataLoader(TensorDataset(X, torch.zeros(100)), 30, shuffle=True)
    torch.manual_seed(0)
    monitor = CollapseMonitor(
        steps=4, every=2, out=tmp_path / "run", held_out=loader, backbone=backbone, projector=projector
    )
    for _ in range(4):
        monitor.step(1.0)
    monitor.close()
    assert torch.equal(torch.randn(3), torch.randn(3, generator=torch.Generator().manual_seed(0)))
    assert backbone.training
    torch.testing.assert_close(backbone.state_dict(), before, rtol=0, atol=0)
    rows = Run(tmp_path / "run").metrics.spectrum
    expected = Spectrum.from_embeddings(backbone.eval()(X).detach())
    assert [(row.step, row.backbone.samples) for row in rows] == [(0, 100), (2, 100), (4, 100)]
    assert rows[0].backbone.effective_rank == pytest.approx(expected.effective_rank(), rel=1e-6)


def test_a_collapse_of_directions_is_found_on_normalized_embeddings():
    monitor, normalize = CollapseMonitor(steps=100, every=10), L2Normalize()
    for step in range(100):
        Z = torch.randn(N, D)
        Z = Z if step < 70 else (3 + Z[:, :1]) * (1 + 0.01 * Z)  # one direction, and norms that vary
        monitor.step(None, torch.randn(N, D), normalize(Z))
    found = [(alarm.step, alarm.where, alarm.metric) for alarm in monitor.alarms]
    assert found == [(80, "projector", "relative_variance")]


def test_the_folder_is_a_run_that_the_report_shows(tmp_path):
    backbone, projector = networks()
    about, numbers = {"objective": "VICRegLoss", "optimizer": {"lr": 3e-3}}, []
    log = lambda row, step: numbers.append((step, row))  # noqa: E731
    monitor = CollapseMonitor(steps=100, epochs=5.0, every=20, out=tmp_path / "mine", about=about, log=log)
    train(monitor, backbone, projector, steps=100, loss=healthy)
    assert {step for step, row in numbers if "backbone/effective_rank" in row} == {20, 40, 60, 80, 100}
    page = write_report([tmp_path / "mine"], tmp_path / "report.html").read_text()
    assert "<h1>mine</h1>" in page
    assert "VICRegLoss" in page
    assert "fullrank evaluate file:WEIGHTS" in page  # the folder has no checkpoint to evaluate
    assert "is missing" not in page  # no files of `fullrank pretrain`
    assert [row.step for row in Run(tmp_path / "mine").metrics.train] == [1, *range(10, 101, 10)]
    with pytest.raises(UserError, match="already contains a run; give another folder, or start="):
        CollapseMonitor(steps=100, out=tmp_path / "mine")


def test_a_continued_training_continues_the_log(tmp_path):
    backbone, projector = networks()
    options = {"steps": 100, "every": 20, "out": tmp_path / "run"}
    train(CollapseMonitor(**options), backbone, projector, steps=70, loss=healthy)
    monitor = CollapseMonitor(start=40, **options)
    train(monitor, backbone, projector, start=40, steps=100, loss=healthy)
    assert [row.step for row in Run(tmp_path / "run").metrics.spectrum] == [20, 40, 60, 80, 100]
    assert Run(tmp_path / "run").spectra.steps.tolist() == [20, 40, 60, 80, 100]


@pytest.mark.parametrize("where", ["loss", "embeddings"])
def test_numbers_that_are_not_finite_are_one_alarm(where, tmp_path):
    monitor = CollapseMonitor(steps=60, log_every=1, every=10, out=tmp_path / "run")
    for step in range(60):
        R = torch.full((N, D), float("nan")) if where == "embeddings" else torch.randn(N, D)
        monitor.step(float("nan") if where == "loss" and step == 7 else 1.0, R)
    monitor.close()
    assert [(alarm.alarm, alarm.where) for alarm in monitor.alarms] == [("not finite", where)]
    assert (monitor.alarms[0].step, monitor.alarms[0].cause) == (8 if where == "loss" else 10, "large steps")
    assert all(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))


def test_a_continued_training_remembers_its_alarms(tmp_path):
    options = {"steps": 20, "every": 5, "log_every": 1, "out": tmp_path / "run"}
    first = CollapseMonitor(**options)
    for _ in range(10):
        first.step(float("nan"), torch.randn(N, D))
    assert first.alarms[0].cause == "objective or views"
    first.close()
    again = CollapseMonitor(start=10, **options)
    assert again.alarms == first.alarms != []
    assert not again.step(float("nan"), torch.randn(N, D))
    again.close()
    elsewhere = CollapseMonitor(start=10, **options | {"out": tmp_path / "other"})  # the log is on another machine
    elsewhere.step(1.0, torch.randn(N, D))
    elsewhere.close()
    assert [row.step for row in Run(tmp_path / "other").metrics.train] == [11]


@pytest.mark.parametrize("start", [0, 319])
def test_a_short_window_before_the_last_step_or_after_a_restart_raises_no_alarm(start, tmp_path):
    options = {"steps": 381, "every": 20, "out": tmp_path / "run"}
    monitor = CollapseMonitor(**options)
    for step in range(381):
        if step == start > 0:
            monitor.close()
            monitor = CollapseMonitor(start=start, **options)
        assert not monitor.step(None, torch.randn(16, 128))
    monitor.close()
    assert [row.step for row in Run(tmp_path / "run").metrics.spectrum][-2:] == [360, 380]


@pytest.mark.parametrize("change", [nn.Module.bfloat16, torch.compile], ids=["bfloat16", "compiled"])
def test_networks_in_bfloat16_and_compiled_ones_are_measured(change):
    torch.manual_seed(0)
    backbone, images = nn.Sequential(nn.Linear(4, D), nn.ReLU()), torch.randn(64, 4)
    expected = embed_held_out([images], backbone, nn.Sequential())["projector"].effective_rank()
    found = embed_held_out([{"pixel_values": images}], change(backbone), change(nn.Sequential()))
    assert found["projector"].effective_rank() == pytest.approx(expected, rel=0.01)


def test_an_inactive_hinge_is_not_a_missing_term():
    monitor = CollapseMonitor(steps=100, every=10, log_every=1)
    for step in range(100):
        R = torch.randn(N, D) if step < 60 else torch.randn(N, 1) + 1e-3 * torch.randn(N, D)
        monitor.step({"invariance": 1.0, "variance": 0.0}, R)
    assert {alarm.cause for alarm in monitor.alarms} == {"large steps, no projector"}


def test_steps_beyond_the_last_are_evaluated_as_often_as_before():
    monitor = CollapseMonitor(steps=10, every=4)
    monitor._write_spectra = lambda spectra, **_: evaluated.append(monitor._step)
    evaluated = []
    for _ in range(16):
        monitor.step(None, torch.randn(N, D))
    assert evaluated == [4, 8, 10, 12, 16]


def test_a_feature_map_is_averaged():
    backbone, images = nn.Conv2d(3, D, 2), torch.randn(N, 3, 4, 4)
    found = embed_held_out([images], backbone, None)["backbone"].eigenvalues
    expected = Spectrum.from_embeddings(backbone(images).mean((2, 3)))
    torch.testing.assert_close(found, expected.eigenvalues)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CollapseMonitor(steps=0), "steps is 0, expected 1 or more"),
        (lambda: CollapseMonitor(steps=9, every=-1), "every is -1"),
        (lambda: CollapseMonitor(steps=9).step(1.0), "neither representations nor held_out"),
        (
            lambda: CollapseMonitor(steps=9).step(1.0, torch.randn(2, 3, 4, 4)),
            r"expected a floating-point tensor \(n, D\)",
        ),
        (lambda: CollapseMonitor(steps=9, held_out=[torch.randn(8, 4)]), "a part of held_out"),
        (lambda: held_out(iter([torch.randn(8, 4)])), "held_out is an iterator, which ends"),
        (lambda: held_out([]), "there are no embeddings"),
        (
            lambda: held_out([torch.randn(8, 5)]),
            r"take held_out \(RuntimeError: mat1 .* resize and normalise them",
        ),
        (lambda: held_out([{"image": 1}]), "held_out yields a NoneType"),
        (
            lambda: held_out([torch.ones(8, 4, dtype=torch.uint8)]),
            "held_out yields torch.uint8, expected floating-point",
        ),
        (lambda: CollapseMonitor(steps=9, projector=nn.Linear(4, D)), "a part of held_out"),
        (lambda: held_out([torch.randn(2, 5, 4)]), r"the backbone returns a tensor \(2, 5, 8\), expected \(n, D\)"),
        (lambda: held_out([torch.randn(8, 4)]).step(1.0, torch.randn(8, D)), "representations and held_out"),
    ],
)
def test_a_mistake_is_an_error_before_the_training(make, words):
    with pytest.raises(UserError, match=words):
        make()


def held_out(images):
    return CollapseMonitor(steps=9, held_out=images, backbone=nn.Linear(4, D))


@pytest.mark.ddp
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_with_different_data_measure_what_one_measures(together, processes):
    with in_float64():
        expected = runpy.run_path(str(WORKER))["main"]()
    for process in together(WORKER, processes):
        for name, values in expected.items():
            torch.testing.assert_close(process[name], values, rtol=1e-10, atol=1e-12, msg=name)


def test_remedies_name_no_files_and_settings_of_a_run():
    monitor = CollapseMonitor(steps=20, every=5)
    for _ in range(20):
        R, Z = torch.randn(1, 64, 32).expand(2, 64, 32), torch.randn(1, 64, 16).expand(2, 64, 16)
        monitor.step(torch.tensor(1.0), tuple(R), [*Z])  # views one by one
    (alarm, *_) = monitor.alarms
    assert alarm.alarm == "equal views"
    assert "look at the views;" in alarm.remedy
    assert not any(word in alarm.remedy for word in ("views.png", "--", "("))


def test_a_hugging_face_model_without_a_pooler_is_an_error_with_a_remedy():
    with pytest.raises(UserError, match=r"pooler_output of the backbone is None; wrap it in a module"):
        pooled(SimpleNamespace(pooler_output=None))
