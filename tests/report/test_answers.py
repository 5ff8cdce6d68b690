from dataclasses import replace

import pytest

from fullrank.evaluation.score import Comparison, Evaluation, Score
from fullrank.evaluation.verdict import verdict
from fullrank.report import read_run_summary
from fullrank.report.answers import QUESTIONS, answers_html, did_it_learn, is_it_better, is_it_healthy


def improving(losses, agreement, spectrum_row):
    steps = range(0, 10 * len(losses), 10)
    return [
        replace(spectrum_row(step), held_out_loss=loss, intraclass_correlation=agreement)
        for step, loss in zip(steps, [None, *losses[1:]], strict=True)
    ]


def test_without_intervals_the_answer_gives_the_agreement_the_held_out_loss_and_the_accuracy(
    make_summary, train_row, spectrum_row
):
    spectrum = improving([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.5, 2.25], 0.49, spectrum_row)
    scores = tuple(
        Score(features=name, probe="linear", value=a) for name, a in (("backbone", 0.44), ("raw pixels", 0.268))
    )
    evaluation = Evaluation(
        model="", data="photos", train_images=1, test_images=1, chance=0.2, statement="", scores=scores
    )
    answer = did_it_learn(make_summary(train=[train_row(80)], spectrum=spectrum, evaluations=(evaluation,)))
    for text in ("49.0", "2.25", "44.0", "raw pixels 26.8", "majority class 20.0", "photos"):
        assert text in answer.text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_answer_gives_the_accuracy_on_the_data_of_the_training(make_summary, train_row, spectrum_row):
    def evaluation(data, accuracy):
        score = Score(features="backbone", probe="linear", value=accuracy)
        return Evaluation(model="", data=data, train_images=1, test_images=1, statement="", scores=(score,))

    evaluations = (evaluation("photos (held out)", 0.44), evaluation("mnist [test]", 0.9))
    both = make_summary(
        recipe={"data": {"source": "photos"}}, train=[train_row(1)], spectrum=[spectrum_row()], evaluations=evaluations
    )
    assert "photos (held out)" in did_it_learn(both).text
    assert "mnist" not in did_it_learn(both).text
    assert "mnist" in did_it_learn(replace(both, evaluations=evaluations[1:])).text


@pytest.mark.parametrize(
    ("losses", "improving_at_the_end"),
    [
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5], True),
        ([9.0, 8.0, 7.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5], False),
        ([9.0, 8.0, 7.0, 2.0, 1.0, 0.5, 0.3, 0.3, 0.4, 0.5], False),  # it rose
        ([1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], False),
        ([9.0, 8.0, 1.0], False),  # too few evaluations
    ],
)
def test_a_run_whose_held_out_loss_still_falls_is_still_improving(
    make_summary, train_row, spectrum_row, losses, improving_at_the_end
):
    answer = did_it_learn(make_summary(train=[train_row(90)], spectrum=improving(losses, 0.5, spectrum_row)))
    assert ("Still improving" in answer.text) is improving_at_the_end


def compared(data="photos", **ends):
    """Return an evaluation with one comparison: feature set → lower and upper end of the difference of the backbone."""
    comparisons = tuple(
        Comparison(
            probe="kNN", against=name.replace("_", " "), accuracy=0.8, reference=0.8 - (low + high) / 2, difference=(low + high) / 2,
            low=low, high=high, units=500,
        )
        for name, (low, high) in ends.items()
    )  # fmt: skip
    sentence = verdict(comparisons)
    return Evaluation(
        model="", data=data, train_images=9, test_images=500, statement="", comparisons=comparisons, verdict=sentence
    )


@pytest.mark.parametrize(
    ("ends", "word", "level"),
    [((0.1, 0.3), "Yes", "good"), ((-0.3, -0.1), "No", "failed"), ((-0.1, 0.2), "Undecided", "warning")],
)
def test_the_untrained_network_decides_whether_a_run_learned(make_summary, spectrum_row, ends, word, level):
    run = make_summary(
        spectrum=improving([9.0, 2.0], 0.5, spectrum_row), evaluations=(compared(untrained_backbone=ends),)
    )
    answer = did_it_learn(run)
    assert (answer.word, answer.level) == (word, level)
    assert f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}" in answer.text


def test_a_loss_that_falls_is_no_proof(make_summary, spectrum_row):
    rows = [replace(spectrum_row(step), held_out_loss=loss) for step, loss in ((0, 5.0), (100, 2.0))]
    readable = [replace(row, probe_images=1000, probe_chance=0.1) for row in rows]
    chance = [replace(row, probe_images=1000, probe_chance=0.5) for row in rows]  # the online accuracy is 0.5
    assert (
        did_it_learn(make_summary(spectrum=rows)).word
        == did_it_learn(make_summary(spectrum=readable)).word
        == "Probably"
    )
    assert did_it_learn(make_summary(spectrum=chance)).word == "Not clear"
    assert did_it_learn(make_summary(spectrum=chance[::-1])).word == "Probably not"
    assert did_it_learn(make_summary()).word == "Not known"
    assert "fullrank evaluate" in did_it_learn(make_summary(spectrum=rows)).text


def test_the_strongest_alternative_decides_whether_a_run_is_better(make_summary):
    both = compared(untrained_backbone=(0.3, 0.5), initial_weights=(-0.1, 0.1))
    answer = is_it_better(make_summary(evaluations=(both,)))
    assert answer.word == "Undecided"
    assert "initial weights" in answer.text
    assert is_it_better(make_summary(evaluations=(compared(raw_pixels=(0.01, 0.2)),))).word == "Yes"
    assert is_it_better(make_summary(evaluations=(compared(raw_pixels=(-0.2, -0.01)),))).word == "No"


def test_the_sentence_on_fine_tuning_is_part_of_the_answer(make_summary):
    frozen = replace(compared(raw_pixels=(0.01, 0.2)), finetuned="Worse: by fine-tuning, the backbone has 40.0 %.")
    answer = is_it_better(make_summary(evaluations=(frozen,)))
    assert answer.word == "Yes"
    assert answer.text.endswith("After fine-tuning: worse, by fine-tuning, the backbone has 40.0 %.")
    assert is_it_better(make_summary(evaluations=(replace(frozen, verdict=""),))).word == "No"


def test_without_scores_the_answer_is_a_command(make_summary, spectrum_row):
    unlabelled = make_summary(
        folder="runs/a", recipe={"data": {"source": "photos"}}, spectrum=[spectrum_row(probe_accuracy=None)]
    )
    assert is_it_better(unlabelled).word == "Not known"
    assert "fullrank evaluate runs/a --labelled SOURCE" in is_it_better(unlabelled).text
    assert "--labelled" not in is_it_better(replace(unlabelled, spectrum=[spectrum_row()])).text


def test_scores_of_an_older_checkpoint_say_so(make_summary, train_row):
    older = replace(compared(untrained_backbone=(0.1, 0.2)), step=5)
    run = make_summary(train=[train_row(9)], evaluations=(older,))
    assert all("checkpoint of step 5" in find(run).text for find in (did_it_learn, is_it_better))
    assert "checkpoint" not in is_it_better(replace(run, evaluations=(replace(older, step=9),))).text


def test_data_with_a_similar_name_is_other_data(make_summary):
    own, other = compared("photos[test]", raw_pixels=(0.1, 0.2)), compared("photos2[test]", raw_pixels=(-0.2, -0.1))
    for evaluations in ((own, other), (other, own)):
        assert is_it_better(make_summary(recipe={"data": {"source": "photos"}}, evaluations=evaluations)).word == "Yes"


def test_several_runs_have_a_row_of_answers_each(make_run, make_summary):
    runs = [read_run_summary(make_run("a")), read_run_summary(make_run("b", alarms=1)), make_summary(label="empty")]
    html = answers_html(runs)
    assert html.count("<tr>") == 1 + len(runs)
    words = [[find(run).word for find in QUESTIONS.values()] for run in runs]
    assert [row[1] for row in words] == ["Yes", "Look at it", "Not known"]
    assert all(f">{word}</span>" in html for row in words for word in row)
    assert all(is_it_healthy(run).text for run in runs)
