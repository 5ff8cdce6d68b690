import inspect
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import fullrank
from fullrank.errors import UserError
from fullrank.recipes import Recipe, SpectrumConfig
from fullrank.run import Run, cost
from fullrank.run import pretrain as pretraining
from fullrank.run.cost import EVALUATION_SHARE, Pace, choose_epochs, explain_busy_cores, plan_evaluations


def test_the_pace_is_that_of_the_steps_after_the_first_without_what_happens_between(monkeypatch):
    times = iter([10.0, 20.0, 20.5, 21.0, 26.5, 27.0])  # two steps to warm up, then 0.5 s a step, and 5 s elsewhere
    monkeypatch.setattr(cost.time, "perf_counter", lambda: now)
    pace, ended = Pace(torch.device("cpu"), least=1.0), []
    for now in times:
        ended.append(pace.tick(5.0 if now > 21 else 0.0))
        assert pace.step_seconds is not None or not any(ended)
    assert ended == [False] * 4 + [True, False]
    assert pace.step_seconds == pytest.approx(0.5)


@pytest.mark.parametrize(("hours", "seconds", "steps"), [(1.0, 0.7, 33), (12.0, 0.05, 1000), (0.5, 3.0, 7)])
def test_the_epochs_fit_and_one_more_would_not(hours, seconds, steps):
    epochs = choose_epochs(Recipe(), hours, seconds, steps)[0].epochs
    assert choose_epochs(Recipe(), hours, seconds, steps, **{"schedule.warmup": 7.0})[0].schedule.warmup == 7.0
    assert cost.REST * epochs * steps * seconds <= 3600 * hours < cost.REST * (epochs + 1) * steps * seconds


@pytest.mark.parametrize(("share", "threads", "says"), [(0.24, 2, True), (0.95, 16, False), (0.24, 1, False)])
def test_busy_cores_are_told_only_to_a_run_of_several_threads_that_waits_for_them(share, threads, says):
    assert ("OMP_NUM_THREADS" in explain_busy_cores(share, threads)) == says


def test_a_run_of_some_hours_equals_a_run_of_the_chosen_epochs(small, tmp_path, monkeypatch, assert_same):
    def two_epochs(steps, device):
        assert len([step for step, _ in zip(steps, range(5), strict=False)]) == 5
        return 1.0

    monkeypatch.setattr(pretraining, "measure_step", two_epochs)
    clock = iter([0.0, 100.0])  # the measurement is a part of the time
    monkeypatch.setattr(pretraining, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    recipe, options = replace(small, batch_size=512, epochs=1), {"console": Console(quiet=True)}
    measured = fullrank.pretrain(recipe, hours=(2.5 * 2 + 100) / 3600, out=tmp_path / "a", **options)
    assert Run(measured.path).recipe.epochs == 2
    given = fullrank.pretrain(recipe, epochs=2, out=tmp_path / "b", **options)
    assert_same(measured.path, given.path)


@pytest.mark.parametrize("hours", [0, -1, math.nan, True, "two", 1e9])
def test_hours_are_a_positive_number_and_exclude_epochs(hours, small):
    with pytest.raises(UserError, match="hours: got"):
        inspect.unwrap(fullrank.pretrain)(small, hours=hours)
    with pytest.raises(UserError, match="hours chooses the epochs"):
        fullrank.pretrain(small, hours=1.0, epochs=3)


def number(plan, steps):
    return 1 + math.ceil(steps / plan.every)


@given(
    steps=st.integers(1, 100_000),
    batch_size=st.sampled_from([16, 256, 4096]),
    dimensions=st.sampled_from([16, 128, 2048]),
    available=st.sampled_from([100, 10_000]),
)
def test_the_evaluations_pass_few_images(steps, batch_size, dimensions, available):
    recipe = Recipe(batch_size=batch_size)
    plan = plan_evaluations(recipe, steps=steps, dimensions=dimensions, available=available)
    views = 2 * batch_size
    losses = sum(plan.has_loss(step, steps) for step in [*range(plan.every, steps, plan.every), steps])
    passes = number(plan, steps) * plan.samples + losses * views
    assert passes <= max(1.01 * EVALUATION_SHARE * steps * 3 * views, 2 * plan.samples + views)
    assert 1 <= plan.every <= steps
    assert plan.samples <= max(10 * dimensions, 64)
    assert number(plan, steps) <= 101
    assert plan.has_loss(steps, steps)


def test_given_samples_and_intervals_are_used_in_at_least_twenty_evaluations():
    recipe = Recipe(spectrum=SpectrumConfig(every=9))
    plan = plan_evaluations(recipe, steps=400, dimensions=128, available=1000, samples=77)
    assert (plan.samples, plan.every, plan.loss_every) == (77, 9, 1)
    plan = plan_evaluations(Recipe(batch_size=16), steps=60, dimensions=128, available=1000, samples=77)
    assert number(plan, 60) >= 20
