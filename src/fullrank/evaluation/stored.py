"""evaluation.json: the scores of a run, one entry for each data set and checkpoint. New scores never remove other
scores.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fullrank.config import config, from_json
from fullrank.errors import UserError
from fullrank.evaluation.score import Evaluation, Score, to_json
from fullrank.files import atomic_write, read_text

FILE = "evaluation.json"


@config
class _File:
    evaluations: tuple[Evaluation, ...]


def read_evaluations(path: Path) -> list[Evaluation]:
    """Read evaluation.json, oldest entry first; the list is empty if there is no such file.

    Raises:
        UserError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        return list(from_json(_File, read_text(path), str(path)).evaluations)
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(f"{path} cannot be read ({error}); move it away and run fullrank evaluate again") from None


def write_evaluations(path: Path, evaluations: Sequence[Evaluation], *, overwrite: bool = True) -> None:
    """Write evaluation.json, complete or not at all.

    Raises:
        UserError: the file exists and may not be replaced, or cannot be written.
    """
    with atomic_write(path, overwrite=overwrite) as draft:
        draft.write_text(json.dumps(to_json(evaluations), indent=2) + "\n")


def add_evaluation(path: Path, new: Evaluation) -> tuple[Evaluation, int]:
    """Add an evaluation to evaluation.json, and return its entry with the number of earlier scores that it replaced."""
    evaluations, replaced = merge_evaluation(read_evaluations(path), new)
    write_evaluations(path, evaluations)
    return evaluations[-1], len(replaced)


def merge_evaluation(stored: Sequence[Evaluation], new: Evaluation) -> tuple[list[Evaluation], list[Score]]:
    """Return the stored evaluations with a new one, which becomes the last, and the old scores that it replaces.

    Scores of the same model state and images are one entry. In it, a new score replaces the score of the same feature
    set, probe, settings and metric; all others stay.

    >>> knn, linear = (Score(features="backbone", probe=probe, value=0.5) for probe in ("knn", "linear"))
    >>> old, new = (Evaluation(model="run", train_images=8, test_images=2, scores=(score,)) for score in (knn, linear))
    >>> (entry,), replaced = merge_evaluation([old], new)
    >>> [score.probe for score in entry.scores], replaced
    (['knn', 'linear'], [])
    """
    same = [each for each in stored if _images(each) == _images(new)]
    scores = {score.key: score for each in same for score in each.scores}
    replaced = [scores[score.key] for score in new.scores if score.key in scores]
    scores |= {score.key: score for score in new.scores}
    compared = {(each.name, each.against): each for entry in (*same, new) for each in entry.comparisons}
    sentences = {
        name: next((text for entry in (new, *reversed(same)) if (text := getattr(entry, name))), "")
        for name in ("verdict", "finetuned")
    }
    merged = replace(new, scores=tuple(scores.values()), comparisons=tuple(compared.values()), **sentences)
    return [*(each for each in stored if each not in same), merged], replaced


def _images(evaluation: Evaluation) -> tuple:
    """Return what scores of one entry share: images and labels, which show in the value of guessing, and checkpoint."""
    chance = None if evaluation.chance is None else round(evaluation.chance, 9)
    return evaluation.data, evaluation.step, evaluation.train_images, evaluation.test_images, chance
