"""Scores as data: a number of a probe on a feature set, differences of such numbers, and all of one model on one data
set, with the file that keeps them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console, ConsoleOptions
from rich.table import Column, Table
from rich.text import Text

from fullrank.config import Count, JsonObject, config, from_json
from fullrank.errors import UserError, printable
from fullrank.evaluation.protocol import score_name
from fullrank.files import atomic_write, read_text

ACCURACY, TOP5, BALANCED, AUROC = "accuracy", "top-5 accuracy", "balanced accuracy", "AUROC"
# The main metric of images with several labels each.
MAP = "mean average precision"
# What probes are compared by.
MAIN_METRICS = (ACCURACY, MAP)
# With more classes than this, the confusion matrix is not stored, and no table lists the classes.
LARGEST_CONFUSION = 30
# With fewer test images, or groups of them, the bootstrap has too few values to draw from, and nothing is decided; a
# recall of fewer is not shown.
LEAST_UNITS = 20
# The file of a run directory.
FILE = "evaluation.json"


@config
class Measured:
    """What is measured.

    Attributes:
        probe: Name of the probe in `PROBES`, 'supervised' or 'finetune'.
        settings: The numbers of its protocol, by name.
        metric: What `value` is: 'accuracy', 'top-5 accuracy', 'balanced accuracy', 'AUROC' or 'mean average precision'.
        name: The text of probe, changed settings and metric: 'kNN, k 200', 'linear (SGD), top-5 accuracy'.
    """

    probe: str
    settings: JsonObject = field(default_factory=dict)
    metric: str = ACCURACY
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", score_name(self.probe, self.settings, self.metric))


@config
class Score(Measured):
    """One number of one probe on one feature set: the mean over n repetitions.

    Attributes:
        features: Name of the feature set, such as 'backbone' or 'raw pixels'.
        low: Lower end of the 95 % interval: bootstrap over the test images, or over their groups; None if it is
            unknown.
        high: Upper end of the interval. It does not contain the chance of training, nor that of the draws of labels.
        sd: Sample standard deviation over the repetitions; None for one.
        n: Number of repetitions: draws of labels, or seeds.
        chosen: What was chosen on held-out training features: `{"penalty": 0.001}`.
        note: What a reader of the value must know, such as a limited learning rate.
        per_class: Class → the share of its test images that are classified correctly (recall), or its average
            precision; of the main metric only.
        positives: Class → the number of test images that have it. With a confusion matrix it has every class of the
            matrix, in its order.
        confusion: Number of test images by true class (row) and predicted class (column); () for more than 30 classes.
    """

    features: str
    value: float
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    n: Count = 1
    chosen: JsonObject = field(default_factory=dict)
    note: str = ""
    per_class: dict[str, float] = field(default_factory=dict)
    positives: dict[str, Count] = field(default_factory=dict)
    confusion: tuple[tuple[Count, ...], ...] = ()

    @property
    def key(self) -> tuple:
        """What is measured; of two scores with the same key, the newer one counts."""
        return self.features, self.name


@config
class Comparison(Measured):
    """The value of the backbone minus that of an alternative, by one probe, on the same test images.

    Attributes:
        against: The feature set of the alternative.
        value: The value of the backbone.
        reference: The value of the alternative.
        low: Lower end of the 95 % interval of the difference: paired bootstrap over the test images, or over their
            groups.
        high: Upper end of the interval.
        units: Number of test images, or of groups of them, that are resampled.
        grouped: Whether test images of one group are resampled together.
        seeds: Number of trainings with other random numbers, of which both values are the mean.
        seed_half_width: The part of the interval that comes from the seeds, t(0.975, seeds − 1) · sd/√seeds; 0 for one
            seed and for frozen features.
    """

    against: str
    value: float
    reference: float
    difference: float
    low: float
    high: float
    units: Count
    grouped: bool = False
    seeds: Count = 1
    seed_half_width: float = 0.0


@config
class Evaluation:
    """The scores of one model on one data set: an entry of evaluation.json. `print` of rich shows it as tables.

    Attributes:
        model: The model argument of the command line.
        data: The source URI of the test images with their split: 'hf:uoft-cs/cifar10[test]', or 'digits (held out)'.
        step: The step of the checkpoint, None if the model is not a run.
        chance: The value of guessing: the share of the most frequent class among the test images, or for several labels
            an image the mean average precision of equal scores.
        statement: One sentence that describes the training and the test images.
        left_out: Descriptions of what was not scored, with the reason.
        comparisons: The backbone against each other feature set, by the probe of the verdict; in a file also by the
            probes of earlier verdicts, the newest first.
        verdict: One sentence: better or worse than the strongest alternative, or not significant.
        finetuned: The same sentence about fine-tuning: these weights against random weights. `fullrank finetune` writes
            it.
    """

    model: str
    data: str = ""
    step: Count | None = None
    train_images: Count
    test_images: Count
    chance: float | None = None
    statement: str = ""
    scores: tuple[Score, ...] = ()
    left_out: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    verdict: str = ""
    finetuned: str = ""

    @property
    def main(self) -> Score | None:
        """The first linear probe on all labels, or else the first score."""
        return main_score(self.scores)

    @property
    def guess(self) -> str:
        """What guessing is: the most frequent class, or equal scores for multi-label images."""
        return "equal scores" if any(score.metric == MAP for score in self.scores) else "majority class"

    def find(self, probe: str, metric: str | None = None, features: str = "backbone") -> Score:
        """Return the score of a probe by its name in `PROBES` or its text; the main metric by default.

        Raises:
            KeyError: there is none.
        """
        for score in self.scores:
            found = probe in (score.probe, score.name) and score.features == features
            if found and score.metric in ([metric] if metric else MAIN_METRICS):
                return score
        raise KeyError(f"no score of {probe} on {features}")

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores must know: the note of each score, and what was left out."""
        notes = [f"{score.name}, {score.features}: {score.note}" for score in self.scores if score.note]
        return [*notes, *(f"left out: {line}" for line in self.left_out)]

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write the scores as JSON, in the format of evaluation.json."""
        write_evaluations(Path(path), [self], overwrite=overwrite)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        lines = (self.verdict, self.finetuned and f"After fine-tuning: {self.finetuned}")
        yield from (Text(printable(line)) for line in lines if line)
        yield from [_score_table(self)] if self.scores else []
        yield from (Text(printable(line)) for line in self.notes)


def main_score(scores: Sequence[Score]) -> Score | None:
    """Return the first score of a linear probe on all labels, or else the first score."""
    linear = (score for score in scores if score.probe.startswith("linear") and score.metric in MAIN_METRICS)
    return next(linear, scores[0] if scores else None)


def percent(value: float) -> str:
    """Return a share as text.

    >>> percent(0.5)
    '50.0 %'
    """
    return f"{100 * value:.1f} %"


def _cell(score: Score) -> str:
    """Return a value with its deviation, or with its interval on a second line; in percent, but for an area."""
    factor, digits = (1, 3) if score.metric == AUROC else (100, 1)
    numbers = (score.value, score.low, score.high, score.sd)
    value, low, high, sd = (None if each is None else f"{factor * each:.{digits}f}" for each in numbers)
    return f"{value} ± {sd}" if sd else f"{value}\n[{low} {high}]" if low else f"{value}"


def _score_table(evaluation: Evaluation) -> Table:
    """Build the table of scores in percent: a row for each probe, a column for each feature set, the last row
    guessing. AUROC, the interval of the balanced accuracy, and the classes are in the report.
    """
    shown = [score for score in evaluation.scores if score.metric not in (BALANCED, AUROC)]
    cells = {(score.name, score.features): _cell(score) for score in shown}
    probes = (evaluation.main.probe, "supervised") if evaluation.main else ()
    balanced = (score for score in evaluation.scores if score.metric == BALANCED and score.probe in probes)
    cells |= {(BALANCED, score.features): _cell(replace(score, low=None)) for score in balanced}
    if evaluation.chance is not None:
        cells |= {(evaluation.guess, score.features): f"{100 * evaluation.chance:.1f}" for score in shown}
    columns = dict.fromkeys(column for _, column in cells)
    table = Table("%", *(Column(Text(printable(name)), justify="right", overflow="fold") for name in columns))
    for row in dict.fromkeys(row for row, _ in cells):
        table.add_row(Text(printable(row)), *(cells.get((row, column), "") for column in columns))
    table.title, table.title_justify = Text(printable(evaluation.data)) if evaluation.data else None, "left"
    repeated = sorted({score.n for score in shown if score.sd is not None})
    notes = [f"±: standard deviation of n = {', '.join(map(str, repeated))} repetitions"] if repeated else []
    notes += ["[ ]: 95 % interval over the test images"] if any(score.low is not None for score in shown) else []
    table.caption, table.caption_justify = "; ".join(notes) or None, "left"
    return table


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
        draft.write_text(json.dumps({"evaluations": [asdict(each) for each in evaluations]}, indent=2) + "\n")


def add_evaluation(path: Path, new: Evaluation) -> tuple[Evaluation, int]:
    """Add an evaluation to evaluation.json, and return its entry with the number of earlier scores that it replaced.

    Scores of the same checkpoint and images are one entry, which becomes the last. In it, a new score replaces the
    score of the same feature set, probe, settings and metric; all others stay. An earlier verdict stays as long as the
    score that it speaks of has its value. Processes that add scores wait for each other.

    Raises:
        UserError: the file is damaged, or cannot be written.
    """
    with ExitStack() as stack:
        with suppress(OSError, NotImplementedError):  # if the folder cannot be written, the error of the file says so
            stack.enter_context(FileLock(path.with_name(f".{path.name}.lock")))
        stored = read_evaluations(path)
        empty = replace(new, scores=(), comparisons=(), verdict="", finetuned="")
        old = next((each for each in stored if _images(each) == _images(new)), empty)
        scores = {score.key: score for score in (*old.scores, *new.scores)}
        values = {score.name: score.value for score in scores.values() if score.features == "backbone"}
        of_probes = [each for each in old.comparisons if each.probe != "finetune"]  # those of the verdict come first
        stale = [each for each in of_probes if values.get(each.name) not in (None, each.value)]
        about_verdict = of_probes[0].name if of_probes else ""
        verdict = "" if any(each.name == about_verdict for each in stale) else old.verdict
        again = {(each.name, each.against) for each in new.comparisons}
        kept = [each for each in old.comparisons if each not in stale and (each.name, each.against) not in again]
        merged = replace(
            new,
            scores=tuple(scores.values()),
            comparisons=(*new.comparisons, *kept),
            verdict=new.verdict or verdict,
            finetuned=new.finetuned or old.finetuned,
        )
        write_evaluations(path, [*(each for each in stored if each != old), merged])
    return merged, len(old.scores) + len(new.scores) - len(scores)


def _images(evaluation: Evaluation) -> tuple:
    """Return what scores of one entry share: images and labels, which show in the value of guessing, and checkpoint."""
    chance = None if evaluation.chance is None else round(evaluation.chance, 9)
    return evaluation.data, evaluation.step, evaluation.train_images, evaluation.test_images, chance
