import json
from dataclasses import replace

import pytest

from fullrank.errors import UserError
from fullrank.evaluation import Evaluation, ProbeScore
from fullrank.run.evaluations import merge_evaluation, read_evaluations, to_json


def scored(*scores, **fields):
    """`scored(("kNN", 0.5), step=3)`."""
    probes = tuple(ProbeScore(features="backbone", probe=probe, accuracy=accuracy) for probe, accuracy in scores)
    return Evaluation(
        **{
            "model": "run",
            "data": "a",
            "step": 3,
            "train_images": 8,
            "test_images": 2,
            "statement": "",
            "scores": probes,
        }
        | fields
    )


def accuracies(evaluation):
    return {score.probe: score.accuracy for score in evaluation.scores}


def test_a_new_score_replaces_only_the_score_of_the_same_feature_set_and_probe():
    old, new = scored(("kNN", 0.5), ("linear", 0.6)), scored(("kNN", 0.7), ("few", 0.2))
    (merged,), replaced = merge_evaluation([old], new)
    assert accuracies(merged) == {"kNN": 0.7, "linear": 0.6, "few": 0.2}
    assert [(score.probe, score.accuracy) for score in replaced] == [("kNN", 0.5)]


def test_scores_of_other_numbers_stay_and_those_of_a_file_without_numbers_are_replaced():
    def score(accuracy, **protocol):
        return ProbeScore(features="backbone", probe="kNN", accuracy=accuracy, protocol=protocol)

    old = replace(scored(), scores=(score(0.1, k=20),))
    for new, stay in (
        (score(0.2, k=200), [0.1, 0.2]),
        (score(0.2, k=20), [0.2]),
        (score(0.2, k=20, temperature=0.07), [0.2]),
        (score(0.2), [0.2]),
    ):
        (merged,), replaced = merge_evaluation([old], replace(scored(), scores=(new,)))
        assert [score.accuracy for score in merged.scores] == stay
        assert len(replaced) == 2 - len(stay)


@pytest.mark.parametrize("change", [{"data": "b"}, {"step": 4}, {"train_images": 9}, {"test_images": 3}])
def test_scores_of_other_images_or_checkpoints_stay(change):
    old, new = scored(("kNN", 0.5)), scored(("kNN", 0.7), **change)
    merged, replaced = merge_evaluation([old], new)
    assert (merged, replaced) == ([old, new], [])


def test_the_last_written_entry_is_the_last(tmp_path):
    merged, _ = merge_evaluation([scored(data="a"), scored(data="b")], scored(data="a"))
    assert [evaluation.data for evaluation in merged] == ["b", "a"]
    (tmp_path / "evaluation.json").write_text(json.dumps(to_json(merged)))
    assert read_evaluations(tmp_path / "evaluation.json") == merged


def test_a_file_of_one_evaluation_is_read(tmp_path):
    value = replace(
        scored(("kNN", 0.5)), statement="train with x[train] (8 images), test with x[test] (2 images)"
    ).to_json()
    for field in ("data", "step", "majority"):
        del value[field]
    (tmp_path / "evaluation.json").write_text(json.dumps(value))
    (evaluation,) = read_evaluations(tmp_path / "evaluation.json")
    assert (evaluation.data, evaluation.step, evaluation.majority, accuracies(evaluation)) == (
        "x[test]",
        None,
        None,
        {"kNN": 0.5},
    )


@pytest.mark.parametrize(
    "content", ["{", "[]", "3", '{"evaluations": 3}', '{"evaluations": [3]}', '{"evaluations": [{"model": "a"}]}', "{}"]
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(UserError, match=r"evaluation\.json") as error:
        read_evaluations(tmp_path / "evaluation.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"majority": 0.75}, {"chance": 0.25}])
def test_scores_of_other_labels_of_the_same_images_are_another_entry(change):
    score = ProbeScore(features="backbone", probe="kNN", accuracy=0.5)
    old = Evaluation(model="run", train_images=8, test_images=2, statement="", scores=(score,), majority=0.5)
    entries, replaced = merge_evaluation([old], replace(old, **change))
    assert (len(entries), replaced) == (2, [])
