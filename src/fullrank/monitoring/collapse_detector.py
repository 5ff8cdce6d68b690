"""The alarm: what the log of a run says has gone wrong, why, and what to change. It asks for no label, and for nothing but the log.

The thresholds are few, and each stands with its reason; `docs/alarm.md` has the runs that they were measured on.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
"""A row of metrics.jsonl."""

SPREAD = 1e-3  # share of Σ‖z‖² that is not the mean's; untrained networks begin at a hundredth, and training spreads them
DIRECTIONS = 2.0  # effective rank: below, embeddings lie on little more than a line
FALLEN = 1 / 2  # of the highest effective rank since spectra burn_in_end: in health it kept three quarters at least
MISSING = 1 / 6  # share of a backbone's dimensions; none is missing in most healthy runs
AGREEMENT = 0.2  # share of the variance that the views of an image have in common: four fifths would be augmentation
EXPLODED = 10.0  # times |terms|, summed, at the first logged step: healthy losses have not even doubled
FIRST_STEPS = 50  # judged by nobody: of BatchNorm's first statistics, which held-out images meet, 0.9⁵⁰ = 0.5 % are left by then
RESOLVED = 4  # dimensions that there are and that the images resolve: of fewer, a rank below 2 is no news, and noise has it too
OUTWEIGHED = 100.0  # one term against all others at the first logged step: its gradient leaves them no say


@dataclass(frozen=True)
class Alarm:
    """One thing that has gone wrong."""

    kind: str
    """'divergence', 'complete collapse', 'dimensional collapse' or 'views disagree'; 'not finite' is the recorder's, and ends the run."""
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
class CollapseDetector:
    """Reads the rows of a log one after the other, and raises each kind of alarm once a place.

    Its state is a function of the rows it has seen, so that whoever resumes a run, or doubts an alarm, replays the log.
    """

    burn_in_end: int
    """The step from which spectra are judged: before, ranks fall in health too. See `settled`."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The recipe as its JSON has it; causes and remedies take their numbers from it, and do without where it is not known."""
    start: Row | None = None
    """The first row of training."""
    bare: bool = True
    """Whether every look so far found the same in both places: there is no projector. Two places that have collapsed look the same too, but
    did not from the start; a diagonal projector begins as the identity, and leaves it."""
    highest: dict[str, float] = field(default_factory=dict)
    """The highest effective rank at each place since spectra settled."""
    raised: set[tuple[str, str]] = field(default_factory=set)
    """Kind and place of each alarm so far."""

    def see(self, row: Row) -> list[Alarm]:
        """Return the alarms that this row raises for the first time."""
        found: list[Alarm] = []
        if row["kind"] == "train":
            self.start = self.start or row
            found = self.diverged(row, self.start)
        elif row["kind"] == "spectrum":
            self.bare &= row.get("backbone") == row.get("projector")
            found = self.judge(row) if row["step"] >= self.burn_in_end else []
        fresh = [alarm for alarm in found if (alarm.kind, alarm.where) not in self.raised]
        self.raised |= {(alarm.kind, alarm.where) for alarm in fresh}
        return fresh

    def diverged(self, row: Row, start: Row) -> list[Alarm]:
        """Whether the loss has grown out of all proportion; below 1, proportion means little, and 1 is what it is held against."""
        limit = EXPLODED * max(sum(map(abs, start["terms"].values())), 1.0)
        if not row["loss"] > limit:
            return []
        expected = f"at most {limit:.4g} after it began at {start['loss']:.4g}"
        return [Alarm("divergence", "loss", f"{row['loss']:.4g}", expected, *self.too_large())]

    def judge(self, row: Row) -> list[Alarm]:
        """What is wrong with a look: of each place the graver collapse alone, and whether the views of an image still agree."""
        agreement = row.get("intraclass_correlation", 1.0)  # which older logs do not have
        why = self.why(strangers=agreement < AGREEMENT)
        found: list[Alarm] = []
        for where in ("backbone",) if self.bare else ("backbone", "projector"):
            if where not in row:
                continue
            self.highest[where] = max(self.highest.get(where, 0.0), row[where]["effective_rank"])
            if sick := collapse(row[where], where, highest=self.highest[where]):
                kind, what, expected = sick
                found.append(Alarm(kind, where, what, expected, *why))
        if agreement < AGREEMENT:
            what = f"views of one image share {max(agreement, 0):.1%} of the variance"
            found.append(Alarm("views disagree", "backbone", what, f"{AGREEMENT:.0%} or more", *why))
        return found

    def why(self, *, strangers: bool) -> tuple[str, str]:
        """The probable cause and its remedy, the first that fits.

        A term that is off; one that outweighs the rest at first; where views disagree, and the loss has not diverged, no projector, or else
        the augmentation; the learning rate, or the want of a projector.
        """
        terms = self.start["terms"] if self.start else {}
        hyper = self.recipe.get("hyper", {})
        # A hinge may rest at 0 in health, as that of VICReg's variance does while embeddings are large: its weight tells.
        idle = [name for name, value in terms.items() if value == 0 and not hyper.get(name)]
        if idle and len(idle) < len(terms):
            return f"a loss without its {' and '.join(map(repr, idle))}, 0 at the first logged step", self.weigh("raise", idle)
        if heavy := outweighing(terms):
            name, times = heavy
            return f"the term '{name}', {times:,.0f} times all others at the first logged step", self.weigh("lower", [name])
        strangers = strangers and ("divergence", "loss") not in self.raised
        projector = "add one (--projector.kind mlp, --projector.widths)"
        if strangers and self.bare:
            return "an objective that spreads the backbone itself, for want of a projector", projector
        if strangers:
            cause = "augmentation, or a backbone with too small a last map, that leaves too little of an image"
            return cause, "weaken the views (--views.0.crop.scale, noise, affine, jitter) or the backbone's strides (--backbone.arguments)"
        cause, remedy = self.too_large()
        return (f"{cause}, or the want of a projector", f"{remedy}, or {projector}") if self.bare else (cause, remedy)

    def weigh(self, change: str, terms: list[str]) -> str:
        """The remedy against a weight that is wrong; objectives mostly call weight and term the same."""
        hyper = self.recipe.get("hyper", {})
        if own := [f"--hyper.{name}" for name in terms if name in hyper]:
            return f"{change} {' and '.join(own)}"
        if hyper.get("log") is False:
            return "take its logarithm (--hyper.log)"
        return "weigh the terms anew" + (f" ({', '.join(f'--hyper.{name}' for name in hyper)})" if hyper else "")

    def too_large(self) -> tuple[str, str]:
        """Cause and remedy where steps are too large, those of a target network among them."""
        lr = self.recipe.get("optimizer", {}).get("lr")
        lower = "lower --optimizer.lr" + (f" (now {lr:g})" if lr is not None else "")
        if momentum := self.recipe.get("method", {}).get("momentum"):
            cause = "steps that are too large, or a target network that follows too fast"
            return cause, f"{lower}, lengthen --schedule.warmup, or raise --method.momentum (now {' '.join(f'{m:g}' for m in momentum)})"
        return "steps that are too large", f"{lower}, or lengthen --schedule.warmup"


def replay(rows: Iterable[Row], *, burn_in_end: int, recipe: Mapping[str, Any] | None = None) -> list[tuple[int, Alarm]]:
    """Return (step, alarm) for each alarm that a log raises, in order.

    Args:
        rows: of metrics.jsonl; those of kind "train" and "spectrum" count.
        burn_in_end: the step from which spectra are judged.
        recipe: as its JSON has it.

    >>> line = {"effective_rank": 1.1, "collapsed_dimensions": 0, "dimensions": 8, "samples": 80, "relative_variance": 0.5}
    >>> rows = [{"step": step, "epoch": step / 10, "kind": "spectrum", "backbone": line} for step in (0, 10, 20, 30)]
    >>> [(step, alarm.kind, alarm.found) for step, alarm in replay(rows, burn_in_end=20)]
    [(20, 'dimensional collapse', 'effective rank 1.100 of 8 dimensions on 80 held-out images')]
    """
    watchman = CollapseDetector(burn_in_end, recipe or {})
    return [(row["step"], alarm) for row in rows for alarm in watchman.see(row)]


def burn_in_end(*, steps: int, warmup: int) -> int:
    """Return the step from which spectra are judged: three warm-ups, at least a twentieth of the run, at most a quarter; never before 50.

    Effective ranks fall steeply until the learning rate has peaked, and recover from there: in all 57 healthy runs of `docs/alarm.md`
    the fall is over after two warm-ups.

    Args:
        steps: of the run.
        warmup: steps of the learning rate's rise.

    >>> burn_in_end(steps=220, warmup=22), burn_in_end(steps=10_000, warmup=500), burn_in_end(steps=10_000, warmup=0)
    (55, 1500, 500)
    """
    return max(min(max(3 * warmup, math.ceil(steps / 20)), math.ceil(steps / 4)), FIRST_STEPS)


def collapse(measured: Mapping[str, Any], where: str, *, highest: float = 0.0) -> tuple[str, str, str] | None:
    """Return which collapse a place shows, the graver alone: its kind, what was found, and what was expected; None in health.

    Args:
        measured: effective_rank, collapsed_dimensions, dimensions, samples, and the spread where it is known.
        where: 'backbone' or 'projector', which may lack dimensions in health.
        highest: effective rank that there has been.

    >>> collapse({"effective_rank": 30.0, "collapsed_dimensions": 64, "dimensions": 128, "samples": 1280}, "backbone")
    ('dimensional collapse', '50.0% of the 128 dimensions that 1280 held-out images resolve are dead', 'at most 16.7%')
    """
    n, D, rank, dead = (measured[name] for name in ("samples", "dimensions", "effective_rank", "collapsed_dimensions"))
    spread, on = measured.get("relative_variance"), f"on {n} held-out images"  # the spread is not known in older logs
    if n < 2 * RESOLVED:
        return None
    if spread is not None and spread < SPREAD:
        return "complete collapse", f"embeddings vary by {spread:.2g} of their mean square {on}", f"{SPREAD:g} or more"
    if D >= RESOLVED and (rank < DIRECTIONS or rank < FALLEN * highest):
        expected = f"{DIRECTIONS:g} or more" if rank < DIRECTIONS else f"{FALLEN:.0%} of the {highest:.3f} it had, or more"
        return "dimensional collapse", f"effective rank {rank:.3f} of {D} dimensions {on}", expected
    if where == "backbone" and (missing := missing_share(dead, D, n)) > MISSING:
        what = f"{missing:.1%} of the {min(D, n // 2)} dimensions that {n} held-out images resolve are dead"
        return "dimensional collapse", what, f"at most {MISSING:.1%}"
    return None


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
