import pytest

from fullrank.report import read_run
from fullrank.report.summary import Verdict, cautions, duration, facts, outcome, verdict


def watch(step=100, *, dead=0, samples=10_000):
    part = {"effective_rank": 45.25, "dimensions": 512, "collapsed_dimensions": dead, "samples": samples}
    return {"step": step, "backbone": part, "projector": part, "probe_accuracy": 0.5}


def test_the_row_tells_what_was_trained_and_how_well(make_run):
    projector = {"kind": "mlp", "widths": [1024, 128]}
    run = read_run(make_run(D_b=96, recipe={"backbone": {"name": "vit_tiny", "arguments": {"depth": 6}}, "projector": projector}))
    row = facts(run) | outcome(run)
    assert row["objective"] == "frossl"
    assert row["backbone"] == "vit_tiny (depth=6)"
    assert row["projector"] == "1024-128"
    assert row["data"] == "hf:cifar10"
    assert row["training"] == "4\N{NARROW NO-BREAK SPACE}000 steps, 40 epochs"
    assert row["duration"] == "2 h 3 min"
    assert row["accuracy"].split() == ["90.0", "%"]
    assert row["backbone rank"].endswith(" of 96")


def test_what_an_old_run_did_not_record_is_said(make_record):
    run = make_record(recipe={"objective": "vicreg", "backbone": "resnet18", "data": None})
    row = facts(run) | outcome(run)
    assert (row["objective"], row["backbone"]) == ("vicreg", "resnet18")
    assert row["data"] == row["projector"] == row["training"] == row["duration"] == row["backbone rank"] == "not recorded"
    assert row["accuracy"] == "not measured"


def test_a_quiet_run_is_good(make_record):
    said = verdict(make_record(train=({"step": 1, "loss": 0.5},), spectrum_rows=(watch(),)))
    assert said.level == "good"
    assert "45.2 of 512 dimensions of the backbone" in said.text


def test_an_alarm_is_told_with_what_became_of_it(make_record):
    warning = {"step": 50, "message": "3 dimensions died"}
    died = verdict(make_record(spectrum_rows=(watch(dead=7),), warnings=(warning,)))
    healed = verdict(make_record(spectrum_rows=(watch(),), warnings=(warning, warning)))
    assert died.level == healed.level == "alarm"
    filled = "At the end the embeddings fill 45.2 of 512 dimensions of the backbone and 45.2 of 512 dimensions of the projector"
    dead = "At the end 7 dimensions of the backbone and 7 dimensions of the projector are dead."
    assert died.text == f"An alarm at step 50: 3 dimensions died. {dead} {filled} (effective rank)."
    assert healed.text == f"2 alarms, the last at step 50: 3 dimensions died. {filled} (effective rank)."


def test_the_kind_of_an_alarm_is_told(make_record):
    warning = {"step": 50, "alarm": "divergence", "message": "divergence, loss: 40, expected 4"}
    assert verdict(make_record(spectrum_rows=(watch(),), warnings=(warning,))).text.startswith(
        "An alarm at step 50: divergence, loss: 40, expected 4."
    )


def test_an_alarm_that_ended_the_run_is_a_failure(make_record):
    broken = {"step": 2, "alarm": "not finite", "message": "not finite, loss: the loss is not finite at step 2"}
    ended, resumed = ((make_record(train=({"step": step, "loss": 0.5},), spectrum_rows=(watch(),), warnings=(broken,))) for step in (1, 3))
    assert verdict(ended) == Verdict(level="failed", text="Failed at step 2: loss: the loss is not finite at step 2.")
    assert verdict(resumed).level == "alarm"


def test_too_few_images_declare_no_dimension_dead(make_record):
    assert verdict(make_record(spectrum_rows=(watch(dead=7, samples=5119),))).level == "good"
    assert verdict(make_record(spectrum_rows=(watch(dead=7, samples=5120),))).level == "alarm"


def test_dead_dimensions_count_even_if_no_alarm_was_raised(make_record):
    assert verdict(make_record(spectrum_rows=(watch(dead=1),))).level == "alarm"


def test_a_loss_that_ends_as_no_number_is_a_failure_whatever_else_is_logged(make_record):
    train = ({"step": 1, "loss": 0.5}, {"step": 2, "loss": float("nan")})
    said = verdict(make_record(train=train, spectrum_rows=(watch(),)))
    assert said.level == "failed"
    assert "step 2" in said.text


def test_without_a_spectrum_or_a_log_no_verdict_is_given(make_record):
    assert verdict(make_record(train=({"step": 1, "loss": 0.5},))).level == "unknown"
    assert verdict(make_record()).level == "unknown"


def test_few_images_a_dimension_are_a_caution(make_record):
    few = [text for text in cautions(make_record(spectrum_rows=(watch(samples=5119),))) if "under ten images a dimension" in text]
    assert len(few) == 1
    assert not [text for text in cautions(make_record(spectrum_rows=(watch(samples=5120),))) if "under ten images" in text]


def test_a_run_that_ends_early_is_said_to(make_record):
    stopped = cautions(make_record(recipe={"epochs": 100}, train=({"step": 1, "epoch": 37.2, "loss": 1.0},), spectrum_rows=(watch(),)))
    assert stopped == ["The log ends in epoch 37.2 of 100: the run was stopped, or is still under way."]
    assert cautions(make_record(recipe={"epochs": 100}, train=({"step": 1, "epoch": 99.8, "loss": 1.0},), spectrum_rows=(watch(),))) == []


def test_gaps_skipped_files_and_missing_labels_are_said(make_record):
    text = " ".join(cautions(make_record(train=({"step": 7, "loss": None},), decode_errors=3)))
    assert "not finite at logged step 7;" in text
    assert (
        "not finite at 2 logged steps, first at step 7;"
        in cautions(make_record(train=({"step": 7, "loss": None}, {"step": 9, "loss": None})))[-1]
    )
    assert "3 files could not be read" in text
    assert "No online accuracy" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (float("nan"), "not recorded")],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration(seconds) == text
