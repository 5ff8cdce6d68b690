"""evaluation.json: the scores of a run, one entry for each data set and checkpoint. New scores never remove other
scores.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.evaluation.result import Evaluation, ProbeScore
from fullrank.files import read_json


def read_evaluations(path: Path) -> list[Evaluation]:
    """Read evaluation.json, oldest entry first; the list is empty if there is no such file.

    A file that holds a single evaluation, as an earlier version wrote it, is read as a list of one entry.

    Raises:
        UserError: the file is damaged.
    """
    if not path.exists():
        return []
    content = read_json(path)
    entries = content.get("evaluations", [content])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(
            f"{path} cannot be read ('evaluations' is no list of objects); restore it, or move it away and run fullrank evaluate again"
        )
    evaluations = [Evaluation.from_json(entry, source=str(path)) for entry in entries]
    return [
        evaluation if evaluation.data else replace(evaluation, data=data_of(evaluation.statement))
        for evaluation in evaluations
    ]


def to_json(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the content of evaluation.json."""
    return {"evaluations": [evaluation.to_json() for evaluation in evaluations]}


def merge_evaluation(stored: list[Evaluation], new: Evaluation) -> tuple[list[Evaluation], list[ProbeScore]]:
    """Return the stored evaluations with a new one, which becomes the last, and the old scores that it replaces.

    Scores of the same model state and images are one entry. In it, a new score replaces the score of the same feature
    set, probe and protocol; all others stay.

    >>> knn, linear = (ProbeScore(features="backbone", probe=probe, accuracy=0.5) for probe in ("kNN", "linear (SGD)"))
    >>> old, new = (Evaluation(model="run", train_images=8, test_images=2, statement="", scores=(score,)) for score in (knn, linear))
    >>> (entry,), replaced = merge_evaluation([old], new)
    >>> [score.probe for score in entry.scores], replaced
    (['kNN', 'linear (SGD)'], [])
    """
    old = [evaluation for evaluation in stored if _same_images(evaluation, new)]
    kept = [evaluation for evaluation in stored if evaluation not in old]
    scores = {(score.features, score.probe): score for score in new.scores}
    stay, replaced = [], []
    for score in (score for evaluation in old for score in evaluation.scores):
        newer = scores.get((score.features, score.probe))
        if newer is not None and _same_protocol(score, newer):
            stay.append(scores.pop((score.features, score.probe)))  # in the place of the old score
            replaced.append(score)
        else:
            stay.append(score)
    compared = {(comparison.probe, comparison.against) for comparison in new.comparisons}
    older = (comparison for evaluation in old for comparison in evaluation.comparisons)
    comparisons = (*(each for each in older if (each.probe, each.against) not in compared), *new.comparisons)
    sentences = {
        name: next((text for evaluation in (new, *reversed(old)) if (text := getattr(evaluation, name))), "")
        for name in ("verdict", "finetuned")
    }
    return [*kept, replace(new, scores=(*stay, *scores.values()), comparisons=comparisons, **sentences)], replaced


def _same_protocol(old: ProbeScore, new: ProbeScore) -> bool:
    """Return whether no number differs; a number that only one of them has is one that the other's version did not have
    yet.
    """
    return all(new.protocol[name] == value for name, value in old.protocol.items() if name in new.protocol)


def _same_images(a: Evaluation, b: Evaluation) -> bool:
    """Return whether scores may stand in one entry: they have the same images, checkpoint and labels.

    Other labels of the same images, such as those of another column, show in the score of guessing, which old files may
    lack.
    """
    if any(getattr(a, name) != getattr(b, name) for name in ("data", "step", "train_images", "test_images", "chance")):
        return False
    return a.majority is None or b.majority is None or abs(a.majority - b.majority) < 1e-9


def data_of(statement: str) -> str:
    """Return the name of the data set in the statement of an evaluation that does not name it.

    >>> data_of("train with a[train] (8 images), test with a[test] (2 images)"), data_of("digits has no test split: 20 % …")
    ('a[test]', 'digits (held out)')
    """
    if match := re.search(r", test with (.+) \(\d+ images\)$", statement):
        return match[1]
    held_out = re.match(r"(.+) has no test split: ", statement)
    return f"{held_out[1]} (held out)" if held_out else "data set not recorded"
