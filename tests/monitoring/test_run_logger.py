import json
from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console

from fullrank.data import prepare
from fullrank.errors import UserError
from fullrank.evaluation import OnlineProbe
from fullrank.methods import feature_dim
from fullrank.monitoring import run_logger as module
from fullrank.monitoring.alarm_messages import alarm_remedy
from fullrank.monitoring.run_logger import RunLogger
from fullrank.monitoring.spectrum_evaluation import SpectrumEvaluation, intraclass_correlation
from fullrank.recipes import SpectrumConfig
from fullrank.run import Run, write_json
from fullrank.run.rows import row_to_json
from fullrank.spectrum import Spectrum
from fullrank.training import Step, build_optimizer

N = 32


@pytest.fixture(scope="module")
def parts(small):
    return prepare(small, say=lambda line: None)


@pytest.fixture
def recorder(parts, tmp_path):
    """`recorder(done=0, log_every=1, …)` of a run that is imagined step by step; again for the same run when it is resumed."""
    recipe, assembly, data = parts
    write_json(tmp_path / "environment.json", {})

    def build(*, done=0, total=22, console=None, **changes):
        fabric = Fabric(accelerator="cpu", devices=1)
        probe = OnlineProbe(feature_dim(assembly.method.backbone), data.K, lr=recipe.probe.lr)
        method, optimizer = assembly.method, build_optimizer(recipe.optimizer, assembly.method)
        console = console or Console(quiet=True)
        changed = replace(recipe, **changes)
        planned = replace(data, plan=replace(data.plan, every=changed.spectrum.every or data.plan.every))
        return RunLogger(tmp_path, changed, fabric, method, optimizer, probe, planned, done=done, total=total, wandb=False, console=console)

    return build


def step(k, *, value=1.0, labels=None):
    generator = torch.Generator().manual_seed(k)
    R, Z = torch.randn(2, N, 16, generator=generator), torch.randn(2, N, 24, generator=generator)
    labels = torch.arange(N) % 10 if labels is None else labels
    return Step(k, {"variance": torch.tensor(2.0), "invariance": torch.tensor(value)}, 0.1, R, {"Z": Z}, labels)


def rows(path, kind):
    return [row for row in Run(path).metrics if row.kind == kind]


def test_a_row_holds_the_terms_and_what_the_probe_learns(recorder, tmp_path):
    with recorder() as look:
        look.after(step(1), waited=0.0)
    (row,) = rows(tmp_path, "train")
    assert row.terms == {"variance": 2.0, "invariance": 1.0}
    assert row.loss == 3.0
    assert row.lr == 0.1
    assert row.epoch == round(1 / 11, 4)
    assert row.probe_loss == pytest.approx(2.3026, abs=1e-3)  # log 10: it has learnt nothing yet


def test_without_labels_there_is_no_probe(recorder, tmp_path):
    with recorder() as look:
        look.after(step(1, labels=torch.full((N,), -1)), waited=0.0)
    assert not any(key.startswith("probe") for key in row_to_json(rows(tmp_path, "train")[0]))


def test_a_label_that_nobody_announced_counts_as_none(recorder, tmp_path):
    with recorder() as look:
        labels = torch.arange(N) % 12
        look.after(step(1, labels=labels), waited=0.0)
    with recorder() as other:
        other.after(step(1, labels=labels.where(labels < 10, -1)), waited=0.0)
    assert torch.equal(look.probe.W, other.probe.W)


def test_the_first_broken_step_is_named_however_rarely_the_loss_is_read(recorder):
    with recorder(log_every=10, checkpoints=1, spectrum=SpectrumConfig(every=100)) as look:
        for k in range(1, 10):
            look.after(step(k, value=float("nan") if k >= 4 else 1.0), waited=0.0)
        with pytest.raises(UserError, match=r"not finite at step 4: term 'invariance' is nan; .* --optimizer\.lr .* no checkpoint was"):
            look.after(step(10), waited=0.0)


def test_looking_changes_nothing_that_is_trained(recorder):
    look = recorder()
    before = {name: tensor.clone() for name, tensor in look.method.state_dict().items()}
    modes = [part.training for part in look.method.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with look:
        look.watch(0)
        for k in range(1, 12):
            look.after(step(k), waited=0.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in look.method.state_dict().items())
    assert all(parameter.grad is None for parameter in look.method.parameters())
    assert [part.training for part in look.method.modules()] == modes


def test_checkpoints_are_spread_evenly_and_end_with_the_last_step(recorder, tmp_path):
    with recorder(total=10, checkpoints=4) as look:
        for k in range(1, 11):
            look.after(step(k), waited=0.0)
    assert [checkpoint.step for checkpoint in Run(tmp_path).checkpoints] == [2, 5, 8, 10]


def test_the_log_is_on_the_disk_before_a_checkpoint(recorder, tmp_path, monkeypatch):
    seen = []

    def save(folder, k, **contents):
        seen.append((k, rows(tmp_path, "train")[-1].step))

    monkeypatch.setattr(module, "save_checkpoint", save)
    with recorder(total=6, checkpoints=2) as look:
        for k in range(1, 7):
            look.after(step(k), waited=0.0)
    assert seen == [(3, 3), (6, 6)]


def collapsed(parts, where):
    """A look at embeddings of which those of one place lie on a line."""
    generator = torch.Generator().manual_seed(0)
    healthy, line = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator) * torch.ones(8)
    spectra = {name: Spectrum.from_embeddings(line if name == where else healthy) for name in ("backbone", "projector")}
    return SpectrumEvaluation(spectra, torch.zeros(len(parts[2].held_out), 16))


def test_it_warns_once_a_place_and_not_before_spectra_settle_nor_again_on_resuming(recorder, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "evaluate_spectrum", lambda *arguments: collapsed(parts, "projector"))
    with recorder(total=220, console=Console(soft_wrap=True)) as look:
        for k in (0, 11, 49, 55, 66):
            look.watch(k)
    (row,) = rows(tmp_path, "alarm")
    assert (row.step, row.epoch, row.alarm, row.where) == (55, 5.0, "dimensional collapse", "projector")
    assert (row.metric, row.observed) == ("effective_rank", pytest.approx(1.0))
    assert "--optimizer.lr (now" in alarm_remedy(row)
    out = capsys.readouterr().out
    assert "warning at step 55: dimensional collapse, projector" in out
    assert alarm_remedy(row) in out
    with recorder(total=220, done=60) as resumed:
        resumed.watch(77)
    assert len(rows(tmp_path, "alarm")) == 1
    with recorder(total=220, done=50) as earlier:  # the warning came later, and is taken back
        earlier.watch(66)
    assert [row.step for row in rows(tmp_path, "alarm")] == [66]


def test_a_diverging_loss_is_an_alarm_and_no_end(recorder, tmp_path):
    with recorder() as look:
        for k in range(1, 5):
            look.after(step(k, value=1e3 if k >= 3 else 1.0), waited=0.0)
    assert [(row.step, row.alarm) for row in rows(tmp_path, "alarm")] == [(3, "divergence")]
    assert rows(tmp_path, "train")[-1].step == 4


def test_what_is_not_finite_is_an_alarm_and_the_end(recorder, tmp_path):
    with recorder() as look:
        look.after(step(1), waited=0.0)
        with pytest.raises(UserError, match="not finite at step 2"):
            look.after(step(2, value=float("inf")), waited=0.0)
    (row,) = rows(tmp_path, "alarm")
    assert (row.step, row.alarm, row.where) == (2, "not finite", "loss")
    assert (row.details["term"], row.details["value"], row.cause) == ("invariance", "inf", "large steps")
    assert "--optimizer.lr" in alarm_remedy(row)


def test_what_is_not_finite_before_the_first_step_is_not_laid_to_its_size(recorder, tmp_path):
    with recorder() as look, pytest.raises(UserError, match=r"at step 1: .* taken before; check the .* objective \(--hyper\)"):
        look.after(step(1, value=float("nan")), waited=0.0)
    (row,) = rows(tmp_path, "alarm")
    assert row.cause == "objective or views"
    assert "--optimizer.lr" not in alarm_remedy(row)


def test_an_alarm_needs_no_label(recorder, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "evaluate_spectrum", lambda *arguments: collapsed(parts, "backbone"))
    with recorder(total=220) as look:
        look.data = replace(look.data, held_out_labels=torch.full_like(look.data.held_out_labels, -1))
        look.watch(60)
    assert rows(tmp_path, "spectrum")[0].probe_accuracy is None
    assert [(row.alarm, row.where) for row in rows(tmp_path, "alarm")] == [("dimensional collapse", "backbone")]


def test_looks_between_steps_know_how_far_the_views_agree(recorder, tmp_path):
    with recorder(spectrum=SpectrumConfig(every=2)) as look:
        look.watch(0)
        for k in range(1, 5):
            look.after(step(k), waited=0.0)
    found = {row.step: row.intraclass_correlation for row in rows(tmp_path, "spectrum")}
    assert found == {0: None, 2: pytest.approx(intraclass_correlation(step(2).R)), 4: pytest.approx(intraclass_correlation(step(4).R))}


def test_what_ended_the_run_is_not_hidden_by_what_its_end_runs_into(recorder, monkeypatch):
    def full(*arguments):
        raise OSError("no space left")

    look = recorder()
    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(ZeroDivisionError), look:
        raise ZeroDivisionError


def test_unreadable_files_are_counted_and_kept_over_a_resume(recorder, tmp_path, capsys):
    with recorder() as look:
        look.data.decode_errors.reasons["a.jpg"] = "empty file"
        look.after(step(1), waited=0.0)
        look.checkpoint(1)
        assert json.loads((tmp_path / "decode_errors.jsonl").read_text()) == {"name": "a.jpg", "reason": "empty file"}
        look.data.decode_errors.reasons.clear()
    (tmp_path / "decode_errors.jsonl").write_text('{"name": "a.jpg", "reason": "empty file"}\n')
    with recorder(done=1, console=Console(soft_wrap=True)) as resumed:
        resumed.data.decode_errors.reasons["b.jpg"] = "not an image"
    assert [json.loads(line)["name"] for line in (tmp_path / "decode_errors.jsonl").read_text().splitlines()] == ["a.jpg", "b.jpg"]
    assert f"2 images could not be read; listed in {tmp_path / 'decode_errors.jsonl'}" in capsys.readouterr().out
    resumed.data.decode_errors.reasons.clear()


def test_a_forecast_is_given_after_twenty_steps(recorder, capsys):
    with recorder(total=100, console=Console(soft_wrap=True)) as look:
        for k in range(1, 21):
            look.after(step(k), waited=0.0)
    assert "to go · memory" in capsys.readouterr().out
