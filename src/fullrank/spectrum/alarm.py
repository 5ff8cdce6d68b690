"""The alarm: what the log of a run says has gone wrong, why, and what to change. It asks for no label, and for nothing but the log.

The thresholds are few, and each stands with its reason; `docs/alarm.md` has the runs that they were measured on.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

Row = Mapping[str, Any]
"""A row of metrics.jsonl."""

SPREAD = 1e-3  # share of Σ‖z‖² that is not the mean's; untrained networks begin at a hundredth, and training spreads them
DIRECTIONS = 2.0  # effective rank: below, embeddings lie on little more than a line
MISSING = 1 / 6  # share of a backbone's dimensions; none is missing in most healthy runs, a ninth in the poorest
AGREEMENT = 0.2  # share of the variance that the views of an image have in common: four fifths would be augmentation
EXPLODED = 10.0  # times the loss of the first step: healthy losses have not even doubled
FIRST_STEPS = 50  # judged by nobody: of BatchNorm's first statistics, which held-out images meet, 0.9⁵⁰ = 0.5 % are left by then
OUTWEIGHED = 100.0  # one term against the next at the first step: its gradient leaves the other no say


@dataclass(frozen=True)
class Alarm:
    """One thing that has gone wrong."""

    kind: str
    """'divergence', 'complete collapse', 'dimensional collapse' or 'views disagree'; NaN is the recorder's, as it ends a run."""
    where: str
    """'loss', 'backbone' or 'projector'."""
    found: str
    """What was measured."""
    expected: str
    """What it was measured against."""
    cause: str
    """What has probably brought it about."""
    remedy: str
    """What to change."""

    @property
    def message(self) -> str:
        """The alarm in one line, without its remedy."""
        return f"{self.kind}, {self.where}: {self.found}, expected {self.expected}; probably {self.cause}"


@dataclass
class Watchman:
    """Reads the rows of a log one after the other, and raises each kind of alarm once a place.

    Its state is a function of the rows it has seen, so that whoever resumes a run, or doubts an alarm, replays the log.
    """

    settled: int
    """The step from which spectra are judged: before, ranks fall in health too. See `settled`."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The recipe as its JSON has it; a remedy names the learning rate."""
    start: Row | None = None
    """The first row of training."""
    raised: set[tuple[str, str]] = field(default_factory=set)
    """Kind and place of each alarm so far."""

    def see(self, row: Row) -> list[Alarm]:
        """Return the alarms that this row raises for the first time."""
        found: list[Alarm] = []
        if row["kind"] == "train":
            self.start = self.start or row
            found = self.diverged(row, self.start)
        elif row["kind"] == "watch" and row["step"] >= self.settled:
            places = ("backbone",) if bare(row) else ("backbone", "projector")
            found = [alarm for where in places if where in row for alarm in self.judge(row, where)]
        fresh = [alarm for alarm in found if (alarm.kind, alarm.where) not in self.raised]
        self.raised |= {(alarm.kind, alarm.where) for alarm in fresh}
        return fresh

    def diverged(self, row: Row, start: Row) -> list[Alarm]:
        """Whether the loss has grown out of all proportion; below 1, proportion means little, and 1 is what it is held against."""
        scale = max(sum(map(abs, start["terms"].values())), 1.0)
        if not row["loss"] > EXPLODED * scale:
            return []
        found = f"loss {row['loss']:.3g} at step {row['step']}"
        expected = f"at most {EXPLODED:g} times the {scale:.3g} it began with"
        return [Alarm("divergence", "loss", found, expected, "steps that are too large", self.smaller_steps())]

    def judge(self, row: Row, where: str) -> list[Alarm]:
        """What is wrong with the spectrum of one place: the graver collapse alone, and whether the views of an image still agree."""
        measured = row[where]
        n, D, rank = measured["samples"], measured["dimensions"], measured["effective_rank"]
        spread, agreement = measured.get("spread"), row.get("agreement", 1.0)  # which older logs do not have
        missing, strangers = missing_share(measured["dead_dimensions"], D, n), agreement < AGREEMENT
        why = self.why(bare=bare(row), strangers=strangers)
        found: list[Alarm] = []
        if spread is not None and spread < SPREAD:
            what = f"embeddings vary by {spread:.1g} of their mean square on {n} held-out images"
            found.append(Alarm("complete collapse", where, what, f"{SPREAD:g} or more", *why))
        elif rank < DIRECTIONS:
            what = f"effective rank {rank:.2f} of {D} dimensions on {n} held-out images"
            found.append(Alarm("dimensional collapse", where, what, f"{DIRECTIONS:g} or more", *why))
        elif where == "backbone" and missing > MISSING:
            what = f"{missing:.0%} of {D} dimensions are dead on {n} held-out images"
            found.append(Alarm("dimensional collapse", where, what, f"at most {MISSING:.0%}", *why))
        if where == "backbone" and strangers:
            what = f"views of one image share {max(agreement, 0):.0%} of the variance"
            found.append(Alarm("views disagree", where, what, f"{AGREEMENT:.0%} or more", *why))
        return found

    def why(self, *, bare: bool, strangers: bool) -> tuple[str, str]:
        """The probable cause and its remedy, the first that fits.

        A term that is off at the first step; one that outweighs the rest there; where views disagree, no projector, or else the
        augmentation; the learning rate.
        """
        terms = self.start["terms"] if self.start else {}
        idle = [name for name, value in terms.items() if value == 0]
        if idle and len(idle) < len(terms):
            named = " and ".join(f"'{name}'" for name in idle)
            return f"a loss without its {named}, at 0 from the first step", f"raise {self.weights(idle)}"
        if heavy := outweighing(terms):
            name, times = heavy
            return f"the term '{name}', {times:.2g} times all others at the first step", f"lower {self.weights([name])}"
        if strangers and bare:
            return "an objective that spreads the backbone itself, for want of a projector", "add one (--projector.widths)"
        if strangers:
            cause = "augmentation, or a backbone with too small a last map, that leaves too little of an image"
            return cause, "weaken the views (--views.0.crop.scale, noise, affine, jitter) or the backbone's strides (--backbone.arguments)"
        return "steps that are too large", self.smaller_steps() + (", or add a projector (--projector.widths)" if bare else "")

    def weights(self, terms: list[str]) -> str:
        """The flags of the weights of terms, where the objective calls weight and term the same."""
        hyper = self.recipe.get("hyper", {})
        return " and ".join(f"--hyper.{name}" for name in terms if name in hyper) or f"its weight among --hyper.{{{','.join(hyper)}}}"

    def smaller_steps(self) -> str:
        """The remedy against steps that are too large."""
        now = self.recipe.get("optimizer", {}).get("lr")
        lower = "lower --optimizer.lr" + (f" (now {now:g})" if now is not None else "")
        return f"{lower}, or lengthen --schedule.warmup"


def replay(rows: Iterable[Row], *, settled: int, recipe: Mapping[str, Any] | None = None) -> list[tuple[int, Alarm]]:
    """Return (step, alarm) for each alarm that a log raises, in order.

    Args:
        rows: of metrics.jsonl; those of kind "train" and "watch" count.
        settled: the step from which spectra are judged.
        recipe: as its JSON has it.

    >>> line = {"effective_rank": 1.1, "dead_dimensions": 0, "dimensions": 8, "samples": 80, "spread": 0.5}
    >>> rows = [{"step": step, "epoch": step / 10, "kind": "watch", "backbone": line} for step in (0, 10, 20, 30)]
    >>> [(step, alarm.kind, alarm.found) for step, alarm in replay(rows, settled=20)]
    [(20, 'dimensional collapse', 'effective rank 1.10 of 8 dimensions on 80 held-out images')]
    """
    watchman = Watchman(settled, recipe or {})
    return list(chain.from_iterable(((row["step"], alarm) for alarm in watchman.see(row)) for row in rows))


def settled(*, steps: int, warmup: int) -> int:
    """Return the step from which spectra are judged: three warm-ups, at least a twentieth of the run, at most a quarter; never before 50.

    Effective ranks fall steeply until the learning rate has peaked, and recover from there: in all 57 healthy runs of `docs/alarm.md`
    the fall is over after two warm-ups.

    Args:
        steps: of the run.
        warmup: steps of the learning rate's rise.

    >>> settled(steps=220, warmup=22), settled(steps=10_000, warmup=500), settled(steps=10_000, warmup=0)
    (55, 1500, 500)
    """
    return max(min(max(3 * warmup, math.ceil(steps / 20)), math.ceil(steps / 4)), FIRST_STEPS)


def bare(row: Row) -> bool:
    """Whether a look found the same in both places: there is no projector."""
    return "backbone" in row and row["backbone"] == row.get("projector")


def missing_share(dead: int, D: int, n: int) -> float:
    """Return the share of dimensions that are dead, of those that the images resolve.

    n images resolve n/2 dimensions: of Gaussian embeddings in D = n/2 equal directions the smallest eigenvalue is (1 − √(D/n))² = 0.09
    of what it should be (Marchenko and Pastur 1967), while towards D = n it goes to zero in health too.

    Args:
        dead: dimensions that are dead among the first min(D, n − 1).
        D: dimensions.
        n: images.

    >>> missing_share(2, 8, 80), missing_share(30, 100, 101), missing_share(75, 100, 101)
    (0.25, 0.0, 0.5)
    """
    resolved = min(D, n // 2)
    return max(1 - (min(D, n - 1) - dead) / resolved, 0.0) if resolved else 0.0


def outweighing(terms: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the term of a loss that outweighs all others together, and by how much; None where none does.

    >>> outweighing({"variance": 20.0, "invariance": -4000.0})
    ('invariance', 200.0)
    """
    *rest, (heaviest, name) = sorted((abs(value), name) for name, value in terms.items()) or [(0.0, "")]
    others = sum(value for value, _ in rest)
    return (name, heaviest / others) if others > 0 and heaviest > OUTWEIGHED * others else None
