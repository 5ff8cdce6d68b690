import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.recipes import Recipe, to_dict
from fullrank.run import collapse_detector
from fullrank.run.rows import SpectrumMetrics, SpectrumRow, TrainRow, row_from_json, row_to_json
from fullrank.spectrum import Spectrum

BURN_IN_END = 20
VALUES = {"effective_rank": 30.0, "condition_number": 100.0, "entropy": 3.0, "collapsed_dimensions": 0}
HEALTHY = SpectrumMetrics(**VALUES, dimensions=128, samples=1280, relative_variance=0.3)


def spectrum_row(step, backbone, projector, correlation=0.8):
    parts = {"backbone": replace(HEALTHY, **backbone), "projector": replace(HEALTHY, **projector)}
    return SpectrumRow(step=step, epoch=step / 10, **parts, intraclass_correlation=correlation)


def train_row(step, terms):
    return TrainRow(step=step, epoch=step / 10, loss=sum(terms.values()), terms=terms, lr=0.1, images_per_second=100.0)


ROWS = {"train": train_row, "spectrum": spectrum_row}
# Rows and the alarms that they raise: every threshold and every cause, and some random rows. A row is [kind, arguments
# of ROWS[kind]]; "message" holds the terms and numbers of observation and cause, "remedy" the flags and their present
# values.
RECORDED = json.loads(Path(__file__).with_name("recorded_alarms.json").read_text())


def terms_and_numbers(text):
    return re.findall(r"'\w+'|\d[\d.,]*(?:e[+-]\d+)?%?(?<![,.])", text)


@pytest.mark.parametrize("name", RECORDED)
def test_alarms_equal_the_recorded_alarms(name):
    recorded = RECORDED[name]
    rows = [ROWS[kind](*arguments) for kind, *arguments in recorded["rows"]]
    alarms = collapse_detector.detect_collapse(rows, burn_in_end=BURN_IN_END, recipe=recorded["recipe"])
    assert [
        {
            "step": alarm.step,
            "alarm": alarm.alarm,
            "where": alarm.where,
            "cause": alarm.cause,
            "message": terms_and_numbers(alarm.message),
            "remedy": re.findall(r"--[\w.]+|now [\d. ]*\d", alarm.remedy),
        }
        for alarm in alarms
    ] == recorded["alarms"]
    assert [row_from_json(json.loads(json.dumps(row_to_json(alarm)))) for alarm in alarms] == alarms


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 5), st.floats(0, 0.4), st.floats(0, 2e-3)), max_size=8), st.integers(0, 8))
def test_alarms_do_not_depend_on_later_rows(numbers, cut):
    rows = [
        spectrum_row(5 * i, {"effective_rank": rank, "relative_variance": variance}, {}, correlation)
        for i, (rank, correlation, variance) in enumerate(numbers)
    ]
    alarms = collapse_detector.detect_collapse(rows, burn_in_end=BURN_IN_END)
    early, late = ([alarm for alarm in alarms if (alarm.step < 5 * cut) == when] for when in (True, False))
    assert collapse_detector.detect_collapse(rows[:cut], burn_in_end=BURN_IN_END) == early
    resumed = collapse_detector.CollapseDetector(BURN_IN_END)
    for row in rows[:cut]:
        resumed.update(row)
    assert [alarm for row in rows[cut:] for alarm in resumed.update(row)] == late


@pytest.mark.parametrize(("n", "rank"), [(1000, 25), (1000, 100), (150, 25), (60, 3), (60, 100)])
def test_measurable_dimensions_without_variance_are_collapsed(n, rank):
    rng = np.random.default_rng(0)
    Z = torch.from_numpy(rng.normal(size=(n, rank)) @ (np.eye(100) if rank == 100 else rng.normal(size=(rank, 100))))
    spectrum = Spectrum.from_embeddings(Z)
    share = collapse_detector.collapsed_share(spectrum.collapsed_dimensions(), 100, n)
    assert share == pytest.approx(max(1 - rank / min(100, n // 2), 0))


def find(Z, where="projector"):
    return collapse_detector.find_collapse(SpectrumMetrics.from_spectrum(Spectrum.from_embeddings(Z)), where)


@pytest.mark.parametrize("D", [1, 4, 128])
@pytest.mark.parametrize("n", [1, 20])
def test_noise_is_not_a_collapse_for_any_number_of_images_and_dimensions(n, D):
    Z = torch.randn(n, D, generator=torch.Generator().manual_seed(0))
    assert find(Z, "backbone") is find(Z, "projector") is None


def test_the_images_of_the_last_evaluation_measure_dimensions_that_fewer_images_do_not():
    few = {"samples": 64, "collapsed_dimensions": 32}  # of the first 63, of which 32 count
    rows = [spectrum_row(step, few, {"samples": 64}) for step in (0, BURN_IN_END, 2 * BURN_IN_END)]
    many = {"backbone": replace(HEALTHY, collapsed_dimensions=64), "projector": HEALTHY}
    for first in (replace(rows[0], full=many), rows[0]):  # during burn-in it raises no alarm
        assert not collapse_detector.detect_collapse([first, *rows[1:]], burn_in_end=BURN_IN_END)
    (alarm,) = collapse_detector.detect_collapse([*rows[:2], replace(rows[2], full=many)], burn_in_end=BURN_IN_END)
    assert (alarm.step, alarm.where, alarm.metric, alarm.observed) == (40, "backbone", "collapsed_share", 0.5)
    assert "the 128 dimensions that 1280 images can measure" in alarm.message
    tiny = replace(HEALTHY, samples=4)  # too few held-out images; equal metrics: no projector
    last = replace(rows[2], backbone=tiny, projector=tiny, full={"backbone": replace(HEALTHY, effective_rank=1.5)})
    (alarm,) = collapse_detector.detect_collapse([last], burn_in_end=BURN_IN_END)
    assert (alarm.where, alarm.observed) == ("backbone", 1.5)


def test_eight_images_are_enough_to_find_a_collapse_in_four_dimensions():
    line, point = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(4), torch.ones(8, 4)
    assert [find(Z).alarm for Z in (line, point)] == ["dimensional collapse", "complete collapse"]


@given(st.integers(1, 10**6), st.integers(0, 10**5))
def test_burn_in_ends_between_a_twentieth_and_a_quarter_of_a_run_and_after_its_first_steps(steps, warmup):
    end = collapse_detector.compute_burn_in_end(steps=steps, warmup=warmup)
    assert max(steps / 20, 50) <= end <= max(steps / 4 + 1, 50)
    assert end >= min(3 * warmup, steps / 4)


@pytest.mark.parametrize(
    ("step", "where", "objective", "reason", "remedy"),
    [
        (3, "loss", "frossl", "or the steps are too large", "lower"),
        (1, "loss", "frossl", "or the objective or the views", "(--hyper)"),
        (0, "embeddings", "a.py:loss", "or the objective", "fullrank check a.py:loss"),
        (1, "weights", "frossl", "the steps are too large", "(--schedule.warmup)"),
    ],
)
def test_an_alarm_for_numbers_that_are_not_finite(step, where, objective, reason, remedy):
    recipe = Recipe(objective=objective)
    machines = (replace(recipe.machine, precision=precision) for precision in ("bf16-mixed", "32-true"))
    recipes = (replace(recipe, machine=machine) for machine in machines)
    detectors = (collapse_detector.CollapseDetector(0, to_dict(each)) for each in recipes)
    rounded, exact = (detector.not_finite(step, 0.1, where, "nan") for detector in detectors)
    assert (rounded.alarm, rounded.where) == ("not finite", where)
    assert rounded.message.startswith("nan; probably because the precision")
    assert reason in rounded.message
    assert remedy in rounded.remedy
    assert "precision" not in exact.message + exact.remedy


def deviating_row(step, **changes):
    return replace(spectrum_row(step, {}, {"dimensions": 512}), **changes)


@pytest.mark.parametrize(("metric", "word"), [("image_deviation", "same view"), ("pixel_deviation", "single colour")])
def test_views_without_variance_are_reported_at_the_first_row(metric, word):
    (alarm,) = collapse_detector.detect_collapse([deviating_row(0, **{metric: 0.0})], burn_in_end=BURN_IN_END)
    assert (alarm.step, alarm.alarm, alarm.where, alarm.metric) == (0, "constant views", "views", metric)
    assert word in alarm.message
    assert collapse_detector.detect_collapse([deviating_row(0, image_deviation=0.01)], burn_in_end=BURN_IN_END) == []


def test_equal_views_are_reported_at_the_first_row_that_has_their_correlation():
    rows = [deviating_row(0, intraclass_correlation=None), deviating_row(10, intraclass_correlation=1 - 1e-7)]
    (alarm,) = collapse_detector.detect_collapse(rows, burn_in_end=BURN_IN_END)
    assert (alarm.step, alarm.alarm, alarm.where, alarm.cause) == (10, "equal views", "views", "no augmentation")
    rows[1] = deviating_row(10, intraclass_correlation=1 - 2e-6)
    assert collapse_detector.detect_collapse(rows, burn_in_end=BURN_IN_END) == []


@pytest.mark.parametrize("where", ["backbone", "projector"])
def test_equal_embeddings_are_reported_at_the_first_row_whatever_the_loss(where):
    variance = {"backbone": 0.3, "projector": 0.3} | {where: 1e-14}
    row = replace(train_row(1, {"variance": 0.0}), relative_variance=variance)
    (alarm,) = collapse_detector.detect_collapse([deviating_row(0), row], burn_in_end=BURN_IN_END)
    assert (alarm.step, alarm.alarm, alarm.where, alarm.metric) == (1, "complete collapse", where, "batch_variance")
    row = spectrum_row(0, {"relative_variance": 0.0}, {"relative_variance": 0.0})
    (alarm,) = collapse_detector.detect_collapse([row, replace(row, step=10)], burn_in_end=BURN_IN_END)
    assert (alarm.step, alarm.alarm, alarm.where) == (0, "complete collapse", "backbone")


def test_the_cause_of_equal_embeddings_is_the_views_the_network_or_the_steps():
    equal = replace(train_row(5, {"variance": 1.0}), relative_variance={"backbone": 0.0, "projector": 0.0})
    before = replace(train_row(1, {"variance": 1.0}), relative_variance={"backbone": 0.2, "projector": 0.2})
    rows = {
        "views": [deviating_row(0, image_deviation=0.0), equal],
        "network": [equal],
        "large steps, no projector": [before, equal],
    }
    for cause, log in rows.items():
        assert collapse_detector.detect_collapse(log, burn_in_end=BURN_IN_END)[-1].cause == cause


def test_an_objective_of_a_sum_that_starts_later_is_neither_a_divergence_nor_a_missing_term():
    rows = [train_row(1, {"a": 1.0, "b": 0.0}), train_row(30, {"a": 0.0, "b": 50.0})]
    collapsed = spectrum_row(40, {"effective_rank": 1.5}, {"effective_rank": 1.2})
    options = {"burn_in_end": BURN_IN_END, "recipe": {"objective": "a(end=2) + b(start=2)", "hyper": {}}}
    alarms = collapse_detector.detect_collapse([*rows, collapsed], **options)
    assert {alarm.alarm for alarm in alarms} == {"dimensional collapse"}
    assert "missing" not in alarms[0].cause
    again = collapse_detector.detect_collapse([*rows, train_row(60, {"a": 0.0, "b": 600.0})], **options)
    assert [alarm.alarm for alarm in again] == ["divergence"]
    exploded = [train_row(1, {"a": 30.0, "b": 0.0}), train_row(2, {"a": 3000.0, "b": 0.2})]
    assert [alarm.alarm for alarm in collapse_detector.detect_collapse(exploded, **options)] == ["divergence"]
