from dataclasses import replace

import pytest

from fullrank.report.answers import UNTRAINED, did_it_learn, evaluation_notes, is_it_better, is_it_healthy, notes


def improving(losses, spectrum_row, **fields):
    steps = range(0, 10 * len(losses), 10)
    return [spectrum_row(step, held_out_loss=loss, **fields) for step, loss in zip(steps, losses, strict=True)]


def test_a_newcomer_reads_the_accuracies_once(make_summary, score, evaluation):
    scores = [score(name, "few-shot", value, labels=2) for name, value in (("backbone", 0.903), (UNTRAINED, 0.471))]
    run = make_summary(evaluations=(evaluation(*scores, untrained_backbone=(0.1, 0.3)),))
    text = did_it_learn(run).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "right on 80.0 %, on the untrained network’s 60.0 %" in text
    assert "90.3 % and 47.1 %" in text
    assert "60.0" not in is_it_better(run).text + " ".join(evaluation_notes(run))


def test_paths_are_names(make_summary, evaluation):
    run = make_summary(evaluations=(evaluation(data="/data/photos[test]", untrained_backbone=(0.1, 0.3)),))
    assert "/data" not in did_it_learn(run).text + " ".join(evaluation_notes(run))
    assert "photos[test]" in did_it_learn(run).text


@pytest.mark.parametrize(
    ("ends", "word", "level"),
    [((0.1, 0.3), "Yes", "good"), ((-0.3, -0.1), "No", "failed"), ((-0.1, 0.2), "Not shown", "warning")],
)
def test_intervals_decide(make_summary, evaluation, ends, word, level):
    learned = did_it_learn(make_summary(evaluations=(evaluation(untrained_backbone=ends),)))
    better = is_it_better(make_summary(evaluations=(evaluation(raw_pixels=ends),)))
    for answer in (learned, better):
        assert (answer.word, answer.level) == (word, level)
        assert f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}" in answer.text


def test_the_strongest_alternative_decides_and_fine_tuning_is_told(make_summary, evaluation):
    both = evaluation(untrained_backbone=(0.3, 0.5), initial_weights=(-0.1, 0.1))
    answer = is_it_better(make_summary(evaluations=(replace(both, finetuned="Worse: by fine-tuning."),)))
    assert answer.word == "Not shown"
    assert "initial weights" in answer.text
    assert "After fine-tuning: Worse: by fine-tuning." in answer.text


def test_a_loss_that_falls_is_no_proof(make_summary, spectrum_row):
    readable, chance = (improving([5.0, 2.0], spectrum_row, of_probe=(1000, share)) for share in (0.1, 0.5))
    assert did_it_learn(make_summary(spectrum=improving([5.0, 2.0], spectrum_row))).word == "Probably"
    assert did_it_learn(make_summary(spectrum=readable)).word == "Probably"
    assert did_it_learn(make_summary(spectrum=chance)).word == "Not clear"
    assert did_it_learn(make_summary(spectrum=chance[::-1])).word == "Probably not"
    assert did_it_learn(make_summary()).word == "Not known"


def test_without_scores_the_answer_is_a_command(make_summary, spectrum_row):
    unlabelled = {"folder": "runs/a", "recipe": {"data": {"source": "photos"}}}
    text = is_it_better(make_summary(**unlabelled, spectrum=[spectrum_row(probe_accuracy=None)])).text
    assert "fullrank evaluate runs/a --labelled SOURCE" in text
    assert "--labelled" not in is_it_better(make_summary(**unlabelled, spectrum=[spectrum_row()])).text


def test_scores_of_an_older_checkpoint_say_so(make_summary, train_row, evaluation):
    older = evaluation(untrained_backbone=(0.1, 0.2), step=5)
    run = make_summary(train=[train_row(9)], evaluations=(older,))
    assert all("checkpoint of step 5" in text for text in (did_it_learn(run).text, is_it_better(run).text))
    assert any("checkpoint of step 5" in text for text in evaluation_notes(run))


def test_health(make_summary, train_row, spectrum_row, alarm_row):
    def health(**fields):
        return is_it_healthy(make_summary(**({"recipe": {"epochs": 1}, "train": [train_row(100)]} | fields))).level

    assert health(spectrum=[spectrum_row()]) == "good"
    assert health(train=[]) == health() == "unknown"
    assert health(recipe={"epochs": 2}) == "unfinished"
    assert health(spectrum=[spectrum_row()], alarms=[alarm_row()]) == "warning"
    assert health(spectrum=[spectrum_row(collapsed_dimensions=3)]) == "warning"
    few = spectrum_row(collapsed_dimensions=3, samples=600)  # too few to tell
    assert health(spectrum=[few]) == "good"
    ended = alarm_row(alarm="not finite", where="loss", cause="large steps", metric="loss")
    assert health(alarms=[ended]) == "failed"
    assert health(alarms=[ended], train=[train_row(200)]) == "warning"  # the run went on


def test_notes(make_summary, train_row, spectrum_row):
    run = make_summary(train=[train_row(2)], spectrum=[spectrum_row(probe_accuracy=None, samples=600)], unreadable=3)
    text = " ".join(notes(run))
    for part in ("needs labels", "600 images", "3 files cannot be read"):
        assert part in text
