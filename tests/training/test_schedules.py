from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from fullrank.training import ScheduleConfig, lr_factor, weight_decay_at

SCHEDULES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["cosine", "restarts", "steps", "constant"]),
        "warmup": st.floats(0, 20),
        "warmup_start": st.floats(0, 1),
        "min_lr_ratio": st.floats(0, 1),
        "period": st.floats(0, 20),
        "milestones": st.lists(st.floats(0, 40), max_size=3).map(tuple),
        "decay": st.floats(0, 1),
    }
)
LENGTHS = {"steps_per_epoch": st.integers(1, 12), "epochs": st.integers(1, 40)}


def curve(config, *, steps_per_epoch, epochs):
    total = steps_per_epoch * epochs
    return [lr_factor(config, step, steps_per_epoch=steps_per_epoch, total=total) for step in range(total)]


def torch_rates(make, steps):
    """Return the learning rates of a torch scheduler with peak 1."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@settings(deadline=None)
@given(config=SCHEDULES, **LENGTHS)
def test_the_warm_up_is_linear(config, steps_per_epoch, epochs):
    values = curve(ScheduleConfig(**config), steps_per_epoch=steps_per_epoch, epochs=epochs)
    warmup = min(round(config["warmup"] * steps_per_epoch), len(values))
    start = config["warmup_start"]
    assert values[:warmup] == pytest.approx([start + (1 - start) * (step + 1) / warmup for step in range(warmup)])


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        ({"name": "cosine", "min_lr_ratio": 0.1}, partial(lr_scheduler.CosineAnnealingLR, T_max=40, eta_min=0.1)),
        (
            {"name": "restarts", "period": 3.0, "min_lr_ratio": 0.1},
            partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=12, eta_min=0.1),
        ),
        (
            {"name": "steps", "milestones": (3.0, 4.5, 8.0), "decay": 0.5},
            partial(lr_scheduler.MultiStepLR, milestones=[12, 18, 32], gamma=0.5),
        ),
    ],
    ids=lambda value: value.get("name") if isinstance(value, dict) else "",
)
def test_each_schedule_equals_that_of_torch(config, scheduler):
    values = curve(ScheduleConfig(warmup=0.0, **config), steps_per_epoch=4, epochs=10)
    assert values == pytest.approx(torch_rates(scheduler, 40))


@pytest.mark.parametrize("name", ["cosine", "restarts", "steps", "constant"])
def test_a_run_shorter_than_its_warm_up_ends_at_the_peak(name):
    found = curve(ScheduleConfig(name=name, warmup=10.0), steps_per_epoch=2, epochs=4)
    assert found == pytest.approx([(t + 1) / 8 for t in range(8)])


def test_the_weight_decay_goes_along_half_a_cosine():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.04)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.4)
    for step in range(20):
        assert weight_decay_at(0.04, 0.4, step, total=20) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
