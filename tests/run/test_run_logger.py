import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console

from fullrank.errors import UserError
from fullrank.evaluation import OnlineProbe
from fullrank.images import DecodeErrors
from fullrank.methods import feature_dim
from fullrank.recipes import SpectrumConfig, build_method
from fullrank.recipes.assembling import build_transform
from fullrank.run import Run, run_logger, write_json
from fullrank.run.data import open_data
from fullrank.run.evaluation_plan import EvaluationPlan
from fullrank.run.rows import row_to_json
from fullrank.run.run_logger import NullLogger, RunLogger, TrainingRun
from fullrank.run.spectrum_evaluation import SpectrumEvaluation, intraclass_correlation
from fullrank.spectrum import Spectrum
from fullrank.training import Step, build_optimizer

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

    def make(*, start=0, total=22, views=None, **changes):
        changed = replace(recipe, **changes)
        plan = replace(data.plan, every=changed.spectrum.every or data.plan.every)
        return TrainingRun(
            path=tmp_path,
            recipe=changed,
            fabric=Fabric(accelerator="cpu", devices=1),
            method=method,
            optimizer=build_optimizer(recipe.optimizer, method),
            probe=OnlineProbe(feature_dim(method.backbone), data.num_classes, lr=recipe.probe.lr),
            data=replace(data, plan=plan),
            views=views or build_transform(recipe),
            start=start,
            total=total,
        )

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
        logger.after_step(step(k, **keywords), wait_seconds=0.0)


def test_a_row_has_the_terms_and_the_loss_of_the_probe(make_logger, tmp_path):
    with make_logger() as logger:
        take_steps(logger, [1])
    (row,) = Run(tmp_path).metrics.train
    assert row.terms == {"variance": 2.0, "invariance": 1.0}
    assert (row.loss, row.lr, row.epoch) == (3.0, 0.1, round(1 / 11, 4))
    assert row.probe_loss == pytest.approx(2.3026, abs=1e-3)  # log 10: the probe is untrained


def test_a_transform_that_removes_the_images_raises_an_alarm_before_the_first_step(make_logger, parts, tmp_path):
    recipe, _, _ = parts
    transform = build_transform(recipe)
    transform.custom_transforms = (lambda x, generator: x * 0,)
    with make_logger(views=transform) as logger:
        logger.evaluate_spectrum(0)
    (alarm,) = Run(tmp_path).metrics.alarms
    assert (alarm.step, alarm.alarm, alarm.where) == (0, "constant views", "views")


def test_equal_embeddings_of_a_batch_raise_an_alarm_at_the_first_step(make_logger, tmp_path):
    same = step(1)
    with make_logger() as logger:
        logger.after_step(
            replace(same, R=same.R[:, :1].expand_as(same.R), embeddings={"Z": torch.zeros(2, N, 24)}), wait_seconds=0.0
        )
    (alarm,) = Run(tmp_path).metrics.alarms
    assert (alarm.step, alarm.alarm, alarm.where) == (1, "complete collapse", "backbone")


def test_the_held_out_loss_and_the_images_of_the_online_accuracy_are_logged(make_logger, parts, tmp_path):
    _, _, data = parts
    with make_logger(spectrum=SpectrumConfig(every=2)) as logger:
        logger.evaluate_spectrum(0)
        take_steps(logger, [1, 2])
    before, after = Run(tmp_path).metrics.spectrum
    assert before.held_out_loss is None  # BatchNorm has no statistics yet
    assert after.held_out_loss > 0
    counts = data.held_out_labels.bincount()
    assert (after.probe_images, after.probe_majority) == (
        counts.sum().item(),
        counts.max().item() / counts.sum().item(),
    )


def test_without_labels_there_is_no_probe(make_logger, tmp_path):
    with make_logger() as logger:
        take_steps(logger, [1], labels=torch.full((N,), -1))
    assert not any(key.startswith("probe") for key in row_to_json(Run(tmp_path).metrics.train[0]))


def test_a_label_beyond_the_known_classes_is_ignored(make_logger):
    labels = torch.arange(N) % 12
    with make_logger() as logger:
        take_steps(logger, [1], labels=labels)
    with make_logger() as other:
        take_steps(other, [1], labels=labels.where(labels < 10, -1))
    assert torch.equal(logger.run.probe.W, other.run.probe.W)


def test_the_first_step_that_is_not_finite_is_named_even_if_the_loss_is_read_later(make_logger):
    with make_logger(log_every=10, checkpoints=1, spectrum=SpectrumConfig(every=100)) as logger:
        take_steps(logger, range(1, 4))
        take_steps(logger, range(4, 10), value=float("nan"))
        with pytest.raises(
            UserError, match=r"not finite at step 4: term 'invariance' is nan; .* --optimizer\.lr .* no checkpoint has"
        ):
            take_steps(logger, [10])


def test_logging_changes_nothing_that_is_trained(make_logger):
    logger = make_logger()
    method = logger.run.method
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    modes = [part.training for part in method.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with logger:
        logger.evaluate_spectrum(0)
        take_steps(logger, range(1, 12))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert [part.training for part in method.modules()] == modes


def test_checkpoints_are_evenly_spaced_and_include_the_last_step(make_logger, tmp_path):
    with make_logger(total=10, checkpoints=4) as logger:
        take_steps(logger, range(1, 11))
    assert [checkpoint.step for checkpoint in Run(tmp_path).checkpoints] == [2, 5, 8, 10]


def test_the_log_is_on_the_disk_before_a_checkpoint(make_logger, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        run_logger, "save_checkpoint", lambda folder, k, **_: seen.append((k, Run(tmp_path).metrics.train[-1].step))
    )
    with make_logger(total=6, checkpoints=2) as logger:
        take_steps(logger, range(1, 7))
    assert seen == [(3, 3), (6, 6)]


def collapsed(parts, where):
    """A spectrum evaluation in which the embeddings of one location lie on a line."""
    generator = torch.Generator().manual_seed(0)
    full_rank, line = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator) * torch.ones(8)
    spectra = {
        name: Spectrum.from_embeddings(line if name == where else full_rank) for name in ("backbone", "projector")
    }
    return SpectrumEvaluation(spectra, torch.zeros(len(parts[2].held_out), 16))


def test_an_alarm_is_raised_once_after_burn_in_and_not_again_on_resume(
    make_logger, parts, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(run_logger, "evaluate_spectrum", lambda *arguments: collapsed(parts, "projector"))
    with make_logger(total=220, console=Console(soft_wrap=True)) as logger:
        for k in (0, 11, 49, 55, 66):
            logger.evaluate_spectrum(k)
    (row,) = Run(tmp_path).metrics.alarms
    assert (row.step, row.epoch, row.alarm, row.where) == (55, 5.0, "dimensional collapse", "projector")
    assert (row.metric, row.observed) == ("effective_rank", pytest.approx(1.0))
    out = capsys.readouterr().out
    assert "warning at step 55: dimensional collapse, projector" in out
    assert "--optimizer.lr (now" in out
    with make_logger(total=220, start=60) as resumed:
        resumed.evaluate_spectrum(77)
    assert len(Run(tmp_path).metrics.alarms) == 1
    with make_logger(total=220, start=50) as earlier:  # the resumed run drops the alarm of step 55
        earlier.evaluate_spectrum(66)
    assert [row.step for row in Run(tmp_path).metrics.alarms] == [66]


def test_a_diverging_loss_raises_an_alarm_and_the_run_continues(make_logger, tmp_path):
    with make_logger() as logger:
        take_steps(logger, [1, 2])
        take_steps(logger, [3, 4], value=1e3)
    assert [(row.step, row.alarm) for row in Run(tmp_path).metrics.alarms] == [(3, "divergence")]
    assert Run(tmp_path).metrics.train[-1].step == 4


def test_a_loss_that_is_not_finite_raises_an_alarm_and_ends_the_run(make_logger, tmp_path):
    with make_logger() as logger:
        take_steps(logger, [1])
        with pytest.raises(UserError, match=r"not finite at step 2: term 'invariance' is inf; .*--optimizer\.lr"):
            take_steps(logger, [2], value=float("inf"))
    (row,) = Run(tmp_path).metrics.alarms
    assert (row.step, row.alarm, row.where, row.cause) == (2, "not finite", "loss", "large steps")


def test_before_the_first_update_the_learning_rate_is_not_the_cause(make_logger):
    with (
        make_logger() as logger,
        pytest.raises(
            UserError, match=r"at step 1: .* taken before\); check the hyperparameters of the objective"
        ) as caught,
    ):
        take_steps(logger, [1], value=float("nan"))
    assert "--optimizer.lr" not in str(caught.value)


def test_an_alarm_needs_no_label(make_run, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(run_logger, "evaluate_spectrum", lambda *arguments: collapsed(parts, "backbone"))
    run = make_run(total=220)
    unlabelled = replace(run.data, held_out_labels=torch.full_like(run.data.held_out_labels, -1))
    with RunLogger(replace(run, data=unlabelled), wandb=False, console=Console(quiet=True)) as logger:
        logger.evaluate_spectrum(60)
    metrics = Run(tmp_path).metrics
    assert metrics.spectrum[0].probe_accuracy is None
    assert [(row.alarm, row.where) for row in metrics.alarms] == [("dimensional collapse", "backbone")]


def test_evaluations_after_a_step_have_the_intraclass_correlation_of_its_views(make_logger, tmp_path):
    with make_logger(spectrum=SpectrumConfig(every=2)) as logger:
        logger.evaluate_spectrum(0)
        take_steps(logger, range(1, 5))
    found = {row.step: row.intraclass_correlation for row in Run(tmp_path).metrics.spectrum}
    assert found == {
        0: None,
        2: pytest.approx(intraclass_correlation(step(2).R)),
        4: pytest.approx(intraclass_correlation(step(4).R)),
    }


def test_an_error_while_closing_does_not_hide_the_first_error(make_logger, monkeypatch):
    logger = make_logger()
    monkeypatch.setattr(run_logger, "write_json", Mock(side_effect=OSError("no space left")))
    with pytest.raises(ZeroDivisionError), logger:
        raise ZeroDivisionError


def test_decode_errors_are_counted_across_a_resume(make_logger, tmp_path, capsys):
    with make_logger() as logger:
        errors = logger.run.data.decode_errors
        errors.reasons["a.jpg"] = "empty file"
        take_steps(logger, [1])
        logger.save_checkpoint(1)
        assert json.loads((tmp_path / "decode_errors.jsonl").read_text()) == {"name": "a.jpg", "reason": "empty file"}
        errors.reasons.clear()
    (tmp_path / "decode_errors.jsonl").write_text('{"name": "a.jpg", "reason": "empty file"}\n')
    with make_logger(start=1, console=Console(soft_wrap=True)):
        errors.reasons["b.jpg"] = "not an image"
    assert [json.loads(line)["name"] for line in (tmp_path / "decode_errors.jsonl").read_text().splitlines()] == [
        "a.jpg",
        "b.jpg",
    ]
    assert f"2 images could not be read; see {tmp_path / 'decode_errors.jsonl'}" in capsys.readouterr().out
    errors.reasons.clear()


def test_a_forecast_follows_twenty_steps(make_logger, capsys):
    with make_logger(total=100, console=Console(soft_wrap=True)) as logger:
        take_steps(logger, range(1, 21))
    assert "left · memory" in capsys.readouterr().out


def test_the_null_logger_takes_part_in_checkpoints_and_writes_nothing(make_run, tmp_path, monkeypatch):
    all_gather = Mock()
    monkeypatch.setattr(DecodeErrors, "all_gather", all_gather)
    files = set(tmp_path.iterdir())
    call_counts = []
    with NullLogger(make_run(total=10, checkpoints=4)) as logger:
        logger.evaluate_start()
        for k in range(1, 11):
            take_steps(logger, [k])
            call_counts.append(all_gather.call_count)
        logger.save_checkpoint(10)  # a signal also saves a checkpoint
    assert call_counts == [0, 1, 1, 1, 2, 2, 2, 3, 3, 4]
    assert all_gather.call_count == 5
    assert set(tmp_path.iterdir()) == files


def test_an_evaluation_embeds_the_planned_images_and_the_views_only_for_a_loss(make_run):
    run = make_run(total=40)
    V = sum(view.count for view in run.recipe.views)
    run = replace(
        run, data=replace(run.data, plan=EvaluationPlan(samples=len(run.data.held_out), every=10, loss_every=2))
    )
    embedded = []

    def count(_, inputs):
        embedded[-1] += len(inputs[0])

    hook = run.method.backbone.register_forward_pre_hook(count)
    with RunLogger(run, wandb=False, console=Console(quiet=True)) as logger:
        for step in range(0, 41, 10):
            embedded.append(0)
            logger.evaluate_spectrum(step)
    hook.remove()
    n = run.data.plan.samples
    assert embedded == [n, n, n + V * min(n, run.recipe.batch_size), n, n + V * min(n, run.recipe.batch_size)]
    assert [row.held_out_loss is None for row in Run(run.path).metrics.spectrum] == [True, True, False, True, False]
