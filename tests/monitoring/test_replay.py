import json
from dataclasses import replace

import pytest

from fullrank.monitoring.replay import alarms, judged_from
from fullrank.recipes import Recipe, to_dict
from fullrank.run import Run, write_json
from fullrank.run.metrics import MetricsWriter
from fullrank.run.rows import SpectrumMetrics, SpectrumRow, row_to_json
from fullrank.training import ScheduleConfig

PER_EPOCH = 39


@pytest.fixture
def run(tmp_path):
    """`run(steps, …)`: a log of 10 epochs whose backbone is down to one direction from the start."""

    def build(steps, **changes):
        recipe = replace(Recipe(epochs=10, schedule=ScheduleConfig(warmup=0.5)), **changes)
        write_json(tmp_path / "recipe.json", to_dict(recipe))
        one = dict(collapsed_dimensions=0, dimensions=128, samples=1280, relative_variance=0.3, condition_number=None, entropy=1.0)
        backbone, projector = (SpectrumMetrics(effective_rank=value, **one) for value in (1.1, 60.0))
        log = MetricsWriter(tmp_path, after=-1, wandb=False, name="")
        for step in steps:
            log.write(SpectrumRow(step=step, epoch=round(step / PER_EPOCH, 4), backbone=backbone, projector=projector))
        log.close()
        return Run(tmp_path)

    return build


def test_a_log_is_judged_from_three_warm_ups_on(run):
    found = run([0, 10, 59, 60, 390])
    assert judged_from(list(map(row_to_json, found.metrics)), found.recipe) == 3 * 20
    assert [(step, alarm.kind, alarm.where) for step, alarm in alarms(found)] == [(60, "dimensional collapse", "backbone")]


def test_a_remedy_takes_its_numbers_from_the_recipe(run):
    ((_, alarm),) = alarms(run([0, 390]))
    assert f"(now {Recipe().optimizer.lr:g})" in alarm.remedy


@pytest.mark.parametrize("steps", [[], [0]])
def test_a_log_that_has_hardly_begun_raises_nothing(steps, run):
    assert alarms(run(steps)) == []


def test_steps_that_count_no_hundredth_of_a_percent_of_an_epoch_raise_nothing(run):
    found = run([0, 10])
    (found.path / "metrics.jsonl").write_text("\n".join(json.dumps(row_to_json(row) | {"epoch": 0.0}) for row in found.metrics) + "\n")
    assert judged_from(list(map(row_to_json, found.metrics)), found.recipe) == 50
    assert alarms(found) == []
