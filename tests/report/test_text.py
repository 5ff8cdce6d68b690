from dataclasses import replace

import pytest

from fullrank.report import read_run_summary
from fullrank.report.number_format import format_duration
from fullrank.report.text import judge_run, list_notes, run_facts
from fullrank.run.alarm_messages import alarm_message


def test_facts_and_metrics_are_those_of_the_run(make_run):
    recipe = {
        "backbone": {"name": "vit_tiny", "arguments": {"depth": 6}},
        "projector": {"kind": "mlp", "widths": [1024, 128]},
    }
    run = read_run_summary(make_run(D_b=96, recipe=recipe))
    row = run_facts(run)
    assert row["objective"] == "frossl"
    assert row["backbone"] == "vit_tiny (depth=6)"
    assert row["projector"] == "1024-128"
    assert row["data"] == "hf:cifar10"
    assert row["training"] == "4\N{NARROW NO-BREAK SPACE}000 steps, 40 epochs"
    assert row["duration"] == "2 h 3 min"


def test_facts_that_an_old_run_lacks_are_not_recorded(make_summary):
    run = make_summary(recipe={"objective": "vicreg", "backbone": "resnet18", "data": None})
    row = run_facts(run)
    assert (row.pop("objective"), row.pop("backbone")) == ("vicreg", "resnet18")
    assert set(row.values()) == {"not recorded"}


def test_a_run_without_alarm_is_good(make_summary, train_row, spectrum_row):
    verdict = judge_run(make_summary(train=[train_row(1)], spectrum=[spectrum_row()]))
    assert verdict.level == "good"
    assert "rank" not in verdict.text  # the longer of two runs can have the lower rank


@pytest.mark.parametrize("alarms", [0, 1])
def test_an_interrupted_run_is_never_good(make_summary, train_row, spectrum_row, alarm_row, alarms):
    run = make_summary(
        recipe={"epochs": 208},
        train=[train_row(400, epoch=4.0)],
        spectrum=[spectrum_row(400)],
        alarms=[alarm_row(300)] * alarms,
    )
    verdict = judge_run(run)
    assert verdict.level == ("warning" if alarms else "unfinished")
    assert "epoch 4 of 208" in verdict.text
    assert "Unfinished" in verdict.text
    assert run_facts(run)["training"].endswith("4 of 208 epochs")
    assert "Unfinished" not in judge_run(replace(run, recipe={"epochs": 4})).text


def test_a_checkpoint_after_the_end_of_the_log_means_that_the_log_is_incomplete(make_summary, train_row, spectrum_row):
    run = make_summary(
        recipe={"epochs": 9}, train=[train_row(100, epoch=1.0)], spectrum=[spectrum_row(100)], last_checkpoint=900
    )
    verdict = judge_run(run)
    assert (verdict.level, "Incomplete log" in verdict.text, "Unfinished" in verdict.text) == (
        "unfinished",
        True,
        False,
    )


def test_the_verdict_gives_the_last_alarm_and_the_last_spectrum(make_summary, spectrum_row, alarm_row):
    alarms = [alarm_row(40, where="projector"), alarm_row(50)]
    collapsed = judge_run(make_summary(spectrum=[spectrum_row(collapsed_dimensions=7)], alarms=alarms[1:]))
    recovered = judge_run(make_summary(spectrum=[spectrum_row()], alarms=alarms))
    assert collapsed.level == recovered.level == "warning"
    assert collapsed.text.startswith(f"An alarm was raised at step 50: {alarm_message(alarms[1])}. ")
    assert recovered.text.startswith(f"2 alarms were raised, the last at step 50: {alarm_message(alarms[1])}.")
    assert "7 dimensions of the backbone and 7 dimensions of the projector have collapsed" in collapsed.text
    assert "have collapsed" not in recovered.text


def test_an_alarm_that_ended_the_run_is_a_failure(make_summary, train_row, spectrum_row, alarm_row):
    details = {
        "term": "variance",
        "value": "nan",
        "objective": "vicreg",
        "precision": "32-true",
        "lr": 0.3,
        "warmup": 1.0,
    }
    alarm = alarm_row(2, alarm="not finite", where="loss", metric="loss", details=details)
    ended, resumed = (
        make_summary(train=[train_row(step)], spectrum=[spectrum_row()], alarms=[alarm]) for step in (1, 3)
    )
    assert judge_run(ended).level == "failed"
    assert judge_run(ended).text.startswith("Failed at step 2: the loss is not finite")
    assert judge_run(resumed).level == "warning"


@pytest.mark.parametrize(("samples", "level"), [(5119, "good"), (5120, "warning")])
def test_collapsed_dimensions_count_if_there_are_enough_images(make_summary, spectrum_row, samples, level):
    assert judge_run(make_summary(spectrum=[spectrum_row(collapsed_dimensions=7, samples=samples)])).level == level


def test_a_last_loss_that_is_not_finite_is_a_failure(make_summary, train_row, spectrum_row):
    verdict = judge_run(make_summary(train=[train_row(1), train_row(2, float("nan"))], spectrum=[spectrum_row()]))
    assert verdict.level == "failed"
    assert "step 2" in verdict.text


def test_without_a_spectrum_or_a_log_the_verdict_is_unknown(make_summary, train_row):
    assert judge_run(make_summary(train=[train_row(1)])).level == "unknown"
    assert judge_run(make_summary()).level == "unknown"


@pytest.mark.parametrize(("samples", "expected"), [(5119, 1), (5120, 0)])
def test_too_few_images_are_a_note(make_summary, spectrum_row, samples, expected):
    caveats = list_notes(make_summary(spectrum=[spectrum_row(samples=samples)]))
    assert sum("fewer than ten images per dimension" in text for text in caveats) == expected


def test_gaps_skipped_files_and_missing_labels_are_notes(make_summary, train_row):
    text = " ".join(list_notes(make_summary(train=[train_row(7, float("nan"))], decode_errors=3)))
    assert "not finite at logged step 7;" in text
    assert "3 files could not be read" in text
    assert "no online accuracy" in text
    two = list_notes(make_summary(train=[train_row(7, float("nan")), train_row(9, float("inf"))]))
    assert "not finite at 2 logged steps, first at step 7;" in two[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (float("nan"), "not recorded"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert format_duration(seconds) == text
