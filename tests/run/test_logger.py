import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console

from fullrank.errors import UserError
from fullrank.images import DecodeErrors
from fullrank.recipes import SpectrumConfig, assemble, build_method
from fullrank.run import Run, logger, write_json
from fullrank.run.data import open_data
from fullrank.run.logger import NullLogger, RunLogger
from fullrank.run.rows import row_to_json
from fullrank.run.steps import TrainingRun
from fullrank.spectrum import Spectrum, intraclass_correlation
from fullrank.training import Step

N = 32


@pytest.fixture(scope="module")
def parts(small):
    """Recipe, method and data of a run."""
    method = build_method(small)
    recipe, data = open_data(small, method, notify=lambda line: None)
    return recipe, method, data


@pytest.fixture
def make_run(parts, tmp_path):
    """`make_run(start=0, total=22, log_every=1, …)`: a run in `tmp_path`; again for the same run when it is resumed."""
    recipe, method, data = parts
    write_json(tmp_path / "environment.json", {})

    def make(*, start=0, total=22, plan=None, **changes):
        changed = replace(recipe, **changes)
        plan = plan or replace(data.plan, every=changed.spectrum.every or data.plan.every)
        log = [row for row in Run(tmp_path).metrics if row.step <= start] if start else []
        fabric = Fabric(accelerator="cpu", devices=1)
        assembly, data_now = assemble(changed, method), replace(data, plan=plan)
        run = TrainingRun(assembly, data_now, fabric, path=tmp_path, recipe=changed, log=log)
        run.start, run.total = start, total
        return run

    return make


@pytest.fixture
def make_logger(make_run):
    """`make_logger(console=None, …)`: the logger of `make_run(…)`."""
    return lambda console=None, **changes: RunLogger(
        make_run(**changes), wandb=False, console=console or Console(quiet=True)
    )


def step(k, *, value=1.0, labels=None):
    generator = torch.Generator().manual_seed(k)
    R, Z = torch.randn(2, N, 16, generator=generator), torch.randn(2, N, 24, generator=generator)
    labels = torch.arange(N) % 10 if labels is None else labels
    return Step(k, {"variance": torch.tensor(2.0), "invariance": torch.tensor(value)}, 0.1, R, {"Z": Z}, labels)


def take_steps(logger, steps, **keywords):
    for k in steps:
        logger.after_step(step(k, **keywords))


def test_a_row_has_the_terms_and_the_loss_of_the_probe(make_logger, tmp_path):
    with make_logger() as logger:
        take_steps(logger, [1])
        take_steps(logger, [2], labels=torch.full((N,), -1))
    row, unlabelled = Run(tmp_path).metrics.train
    assert row.terms == {"variance": 2.0, "invariance": 1.0}
    assert (row.loss, row.lr, row.epoch) == (3.0, 0.1, round(1 / 11, 4))
    assert row.probe_loss == pytest.approx(2.3026, abs=1e-3)  # log 10: the probe is untrained
    assert not any(key.startswith("probe") for key in row_to_json(unlabelled))


def test_an_evaluation_has_the_held_out_loss_the_correlation_and_the_accuracy(make_logger, parts, tmp_path):
    with make_logger(spectrum=SpectrumConfig(every=2)) as logger:
        logger.evaluate_start()
        take_steps(logger, [1, 2])
    before, after = Run(tmp_path).metrics.spectrum
    assert before.held_out_loss is before.intraclass_correlation is None  # BatchNorm has no statistics yet
    assert after.held_out_loss > 0
    assert after.intraclass_correlation == pytest.approx(intraclass_correlation(step(2).R))
    counts = parts[2].held_out.labels.bincount()
    assert (after.probe_images, after.probe_majority) == (int(counts.sum()), int(counts.max()) / int(counts.sum()))


def test_a_label_beyond_the_known_classes_is_ignored(make_logger):
    labels = torch.arange(N) % 12
    with make_logger() as logger, make_logger() as other:
        take_steps(logger, [1], labels=labels)
        take_steps(other, [1], labels=labels.where(labels < 10, -1))
    assert torch.equal(logger.run.probe.W, other.run.probe.W)


def test_checkpoints_are_evenly_spaced_and_follow_the_log(make_logger, tmp_path, monkeypatch):
    seen, save = [], logger.save_checkpoint

    def record(path, k, **values):
        seen.append((k, Run(tmp_path).metrics.train[-1].step))
        save(path, k, **values)

    monkeypatch.setattr(logger, "save_checkpoint", record)
    with make_logger(total=10, checkpoints=4) as one:
        take_steps(one, range(1, 11))
    assert seen == [(2, 2), (5, 5), (8, 8), (10, 10)]


def collapsed(parts, where):
    """Spectra in which the embeddings of one location lie on a line."""
    generator = torch.Generator().manual_seed(0)
    full_rank, line = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator) * torch.ones(8)
    chosen = {name: line if name == where else full_rank for name in ("backbone", "projector")}
    features = torch.zeros(len(parts[2].held_out), 16)
    return {name: Spectrum.from_embeddings(Z) for name, Z in chosen.items()}, features


def test_an_alarm_is_raised_once_and_not_again_on_resume(make_logger, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logger, "evaluate_spectra", lambda *arguments: collapsed(parts, "projector"))
    monkeypatch.setattr(logger, "full_spectra", lambda run: {})
    with make_logger(total=220, console=Console(soft_wrap=True)) as first:
        for k in (0, 11, 49, 55, 66):
            first.evaluate_spectrum(k)
    (row,) = Run(tmp_path).metrics.alarms
    assert (row.step, row.epoch, row.alarm, row.where) == (55, 5.0, "dimensional collapse", "projector")
    assert (row.metric, row.observed) == ("effective_rank", pytest.approx(1.0))
    out = capsys.readouterr().out
    assert "warning at step 55: dimensional collapse, projector" in out
    assert "--optimizer.lr, now" in out
    with make_logger(total=220, start=60) as resumed:
        resumed.evaluate_spectrum(77)
    assert len(Run(tmp_path).metrics.alarms) == 1
    with make_logger(total=220, start=50) as earlier:  # the resumed run drops the alarm of step 55
        earlier.evaluate_spectrum(66)
    assert [row.step for row in Run(tmp_path).metrics.alarms] == [66]


def test_alarms_of_the_training_steps_are_logged_and_the_run_continues(make_logger, tmp_path):
    same = step(5)
    with make_logger() as logger:
        take_steps(logger, [1, 2])
        take_steps(logger, [3, 4], value=1e3)
        equal = {"R": same.R[:, :1].expand_as(same.R), "embeddings": {"Z": torch.zeros(2, N, 24)}}
        logger.after_step(replace(same, **equal))
    alarms = [(row.step, row.alarm) for row in Run(tmp_path).metrics.alarms]
    assert alarms == [(3, "divergence"), (5, "complete collapse")]
    assert Run(tmp_path).metrics.train[-1].step == 5


@pytest.mark.parametrize(("first", "cause"), [(1, "objective or views"), (4, "large steps")])
def test_the_first_step_that_is_not_finite_is_named_even_if_the_loss_is_read_later(first, cause, make_logger, tmp_path):
    with make_logger(log_every=10, checkpoints=1, spectrum=SpectrumConfig(every=100)) as logger:
        take_steps(logger, range(1, first))
        take_steps(logger, range(first, 10), value=float("nan"))
        words = rf"at step {first}: term 'invariance' is nan; .* no checkpoint has"
        with pytest.raises(UserError, match=words) as error:
            take_steps(logger, [10])
    assert ("--optimizer.lr" in str(error.value)) == (first > 1)
    (row,) = Run(tmp_path).metrics.alarms
    assert (row.step, row.alarm, row.where, row.cause) == (first, "not finite", "loss", cause)


def test_decode_errors_are_counted_across_a_resume(make_logger, tmp_path, capsys):
    with make_logger() as logger:
        errors = logger.run.data.decoding.errors
        errors.reasons["a.jpg"] = "empty file"
        take_steps(logger, [1])
        logger.save_checkpoint(1)
    errors.reasons.clear()
    with make_logger(start=1, console=Console(soft_wrap=True)):
        errors.reasons["b.jpg"] = "not an image"
    lines = (tmp_path / "decode_errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a.jpg", "b.jpg"]
    assert f"2 images could not be read; see {tmp_path / 'decode_errors.jsonl'}" in capsys.readouterr().out
    errors.reasons.clear()


def test_the_pace_is_printed_once_and_the_durations_count_across_a_resume(make_logger, capsys, tmp_path):
    before = {"duration_seconds": 100.0, "cpu_seconds": 50.0, "spectrum_share": 0.5}
    write_json(tmp_path / "environment.json", before)
    with make_logger(total=3600, console=Console(soft_wrap=True), spectrum=SpectrumConfig(every=1000)) as logger:
        logger.pace._least = 0.0
        take_steps(logger, range(1, 8))
        seconds = logger.pace.step_seconds
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "measured" in line)
    assert f"with 3,600 steps of {seconds:.3g} seconds, measured · memory" in line
    after = Run(tmp_path).environment
    assert all(before[name] <= after[name] < before[name] + 20 for name in ("duration_seconds", "cpu_seconds"))
    assert after["spectrum_share"] == pytest.approx(0.5, abs=0.1)


def test_the_null_logger_takes_part_in_checkpoints_and_writes_nothing(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(DecodeErrors, "all_gather", all_gather := Mock())
    files = set(tmp_path.iterdir())
    with NullLogger(make_run(total=10, checkpoints=4)) as logger:
        logger.evaluate_start()
        take_steps(logger, range(1, 11))
        assert all_gather.call_count == 4
        logger.save_checkpoint(10)  # a signal also saves a checkpoint
    assert all_gather.call_count == 5
    assert set(tmp_path.iterdir()) == files
