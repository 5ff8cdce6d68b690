"""Scores as data: a number of a probe on a feature set, differences of such numbers, and all of one model on one
data set.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.table import Column, Table
from rich.text import Text

from fullrank.config import Count, JsonObject, config
from fullrank.errors import printable
from fullrank.evaluation.protocol import score_name

ACCURACY, TOP5, BALANCED, AUROC = "accuracy", "top-5 accuracy", "balanced accuracy", "AUROC"
MAP = "mean average precision"
"""The main metric of images with several labels each."""
MAIN_METRICS = (ACCURACY, MAP)
"""What probes are compared by."""
LARGEST_CONFUSION = 30
"""With more classes than this, the confusion matrix is not stored, and no table lists the classes."""


@config
class Score:
    """One number of one probe on one feature set: the mean over n repetitions.

    Attributes:
        features: Name of the feature set, such as 'backbone' or 'raw pixels'.
        probe: Name of the probe in `PROBES`, 'supervised' or 'finetune'.
        settings: The numbers of its protocol, by name.
        metric: What `value` is: 'accuracy', 'top-5 accuracy', 'balanced accuracy', 'AUROC' or 'mean average precision'.
        low: Lower end of the 95 % interval: bootstrap over the test images, or over their groups; None if it is
            unknown.
        high: Upper end of the interval. It does not contain the chance of training, nor that of the draws of labels.
        sd: Sample standard deviation over the repetitions; None for one.
        n: Number of repetitions: draws of labels, or seeds.
        chosen: What was chosen on held-out training features: `{"penalty": 0.001}`.
        note: What a reader of the value must know, such as a limited learning rate.
        per_class: Class → the share of its test images that are classified correctly (recall), or its average
            precision; of the main metric only.
        positives: Class → the number of test images that have it; only for several labels an image.
        confusion: Number of test images by true class (row) and predicted class (column); () for more than 30 classes.
        name: The text of probe, changed settings and metric: 'kNN, k 200', 'linear (SGD), top-5 accuracy'.
    """

    features: str
    probe: str
    settings: JsonObject = field(default_factory=dict)
    metric: str = ACCURACY
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
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", score_name(self.probe, self.settings, self.metric))

    @property
    def key(self) -> tuple:
        """What is measured; of two scores with the same key, the newer one counts."""
        return self.features, self.name

    @property
    def is_linear(self) -> bool:
        """Whether this is the main metric of a linear probe on all labels."""
        return self.probe.startswith("linear") and self.metric in MAIN_METRICS


@config
class Comparison:
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
        name: The text of probe, changed settings and metric, as of a `Score`.
    """

    probe: str
    settings: JsonObject = field(default_factory=dict)
    metric: str = ACCURACY
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
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", score_name(self.probe, self.settings, self.metric))


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
        comparisons: The backbone against each other feature set, by the main probe.
        verdict: One sentence: better or worse than the strongest alternative, or undecided.
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
        """The score of the verdict: the first linear probe on all labels, or else the first score."""
        return main_score(self.scores)

    @property
    def headlines(self) -> tuple[Score, ...]:
        """The scores that tables list: without balanced accuracy and AUROC, which belong to the results by class."""
        return tuple(score for score in self.scores if score.metric not in (BALANCED, AUROC))

    def find(self, probe: str, metric: str | None = None, features: str = "backbone") -> Score:
        """Return the score of a probe by its name in `PROBES` or its text; the main metric by default.

        Raises:
            KeyError: there is none.
        """
        for score in self.scores:
            fits = probe in (score.probe, score.name) and score.features == features
            if fits and (score.metric == metric or (metric is None and (score.metric in MAIN_METRICS))):
                return score
        raise KeyError(f"no score of {probe} on {features}")

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores must know: the note of each score, and what was left out."""
        notes = [f"{score.name}, {score.features}: {score.note}" for score in self.scores if score.note]
        return [*notes, *(f"left out: {line}" for line in self.left_out)]

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write the scores as JSON, in the format of evaluation.json."""
        from fullrank.evaluation.stored import write_evaluations

        write_evaluations(Path(path), [self], overwrite=overwrite)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        for table in (_score_table(self), _class_table(self)):
            if table.row_count:
                yield table
        for line in (*self.notes, self.verdict, self.finetuned and f"After fine-tuning: {self.finetuned}"):
            if line:
                yield Text(printable(line))


def main_score(scores: Sequence[Score]) -> Score | None:
    """Return the first score of a linear probe on all labels, or else the first score."""
    return next((score for score in scores if score.is_linear), scores[0] if scores else None)


def percent(value: float) -> str:
    """Return a share as text.

    >>> percent(0.5)
    '50.0 %'
    """
    return f"{100 * value:.1f} %"


def _cell(score: Score, factor: int = 100, digits: int = 1) -> str:
    """Return a value with its deviation, or with its interval on a second line."""
    text = f"{factor * score.value:.{digits}f}"
    if score.sd is not None:
        return f"{text} ± {factor * score.sd:.{digits}f}"
    if score.low is None or score.high is None:
        return text
    return f"{text}\n[{factor * score.low:.{digits}f} {factor * score.high:.{digits}f}]"


def _table(corner: str, names: Sequence[str], rows: dict[str, dict[str, str]]) -> Table:
    """Build a table of row → column → text."""
    table = Table(corner, *(Column(Text(printable(name)), justify="right", overflow="fold") for name in names))
    for name, cells in rows.items():
        table.add_row(Text(printable(name)), *(cells.get(column, "") for column in names))
    return table


def _score_table(evaluation: Evaluation) -> Table:
    """Build the table of scores in percent: a row for each probe, a column for each feature set, the last row
    guessing.
    """
    rows: dict[str, dict[str, str]] = {}
    shown = evaluation.headlines
    for score in shown:
        rows.setdefault(score.name, {})[score.features] = _cell(score)
    names = list(dict.fromkeys(score.features for score in shown))
    if rows and evaluation.chance is not None:
        guess = "equal scores" if any(score.positives for score in shown) else "majority class"
        rows[guess] = dict.fromkeys(names, f"{100 * evaluation.chance:.1f}")
    table = _table("%", names, rows)
    table.title, table.title_justify = Text(printable(evaluation.data)) if evaluation.data else None, "left"
    repeated = sorted({score.n for score in shown if score.sd is not None})
    notes = [f"±: standard deviation of n = {', '.join(map(str, repeated))} repetitions"] if repeated else []
    notes += ["[ ]: 95 % interval over the test images"] if any(score.low is not None for score in shown) else []
    table.caption, table.caption_justify = "; ".join(notes) or None, "left"
    return table


def _class_table(evaluation: Evaluation) -> Table:
    """Build the table of the main probe by class, with the networks that were trained with labels beside it."""
    main = evaluation.main
    probes = (main.probe, "supervised", "finetune") if main else ()
    scores = [
        s
        for s in evaluation.scores
        if main and s.probe in probes and (s.probe != main.probe or s.settings == main.settings)
    ]
    heads = {id(s): s.features if s.probe in probes[:2] else f"{s.features}, {score_name(s.probe, {})}" for s in scores}
    rows: dict[str, dict[str, str]] = {}
    for score in scores:
        if score.metric in (BALANCED, AUROC):
            scale = (100, 1) if score.metric == BALANCED else (1, 3)
            rows.setdefault(score.metric, {})[heads[id(score)]] = _cell(score, *scale)
    for score in (s for s in scores if len(s.per_class) <= LARGEST_CONFUSION):
        for name, value in score.per_class.items():
            what = f"average precision, {name} (n = {score.positives[name]})" if score.positives else f"recall, {name}"
            rows.setdefault(what, {})[heads[id(score)]] = f"{100 * value:.1f}"
    return _table(main.name if main else "", list(dict.fromkeys(heads.values())), rows)


def to_json(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the content of evaluation.json."""
    return {"evaluations": [asdict(evaluation) for evaluation in evaluations]}
