"""A run in words: its facts in a row, its verdict in a sentence, and what limits the reading of its numbers."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from fullrank.report.alarms import happened, said
from fullrank.report.differ import projector
from fullrank.report.read import PARTS, Record, look_up

UNKNOWN = "not recorded"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    level: str
    """`good`, `alarm`, `failed` or `unknown`."""
    text: str


def verdict(run: Record) -> Verdict:
    """Whether the run is healthy, as far as its own log says: a loss that is not finite, then the alarms raised, then the last spectrum."""
    if not run.train and not run.spectrum_rows:
        return Verdict(level="unknown", text="There is no log to judge by.")
    steps, values = run.series("train", "loss")
    if values and values[-1] is None:
        return Verdict(level="failed", text=f"Failed: the loss is not finite at step {count(steps[-1])}, the last one logged.")
    filled = _filled(run)
    if run.warnings:
        last, n = run.warnings[-1], len(run.warnings)
        if last.get("alarm") == "not finite" and not (steps and steps[-1] > last["step"]):  # it ended the run
            return Verdict(level="failed", text=f"Failed at step {count(last['step'])}: {happened(last)}.")
        raised = f"{n} alarms, the last" if n > 1 else "An alarm"
        told = f"{raised} at step {count(last['step'])}: {said(last)}."
        return Verdict(level="alarm", text=" ".join(filter(None, (told, _dead(run), filled))))
    if _dead(run):
        return Verdict(level="alarm", text=f"No alarm was raised, but: {_dead(run)}")
    if not filled:
        return Verdict(level="unknown", text="No alarm was raised, but no spectrum was measured either.")
    return Verdict(level="good", text=f"No alarm. {filled}")


def facts(run: Record) -> dict[str, str]:
    """What was trained, on what, and for how long."""
    return {
        "objective": str(look_up(run.recipe, "objective") or UNKNOWN),
        "backbone": _backbone(run),
        "projector": projector(run.recipe) or UNKNOWN,
        "data": str(look_up(run.recipe, "data", "source") or UNKNOWN),
        "training": _length(run),
        "duration": duration(look_up(run.environment, "duration_seconds")),
    }


def outcome(run: Record) -> dict[str, str]:
    """How well, as last measured."""
    return {"accuracy": last_accuracy(run)} | {f"{part} rank": effective_rank(run, part) or UNKNOWN for part in PARTS}


def cautions(run: Record) -> list[str]:
    """What is missing, damaged or too small to be trusted, a sentence each."""
    found = list(run.notes)
    if run.train and not any(value is not None for value in run.series("spectrum", "probe_accuracy")[1]):
        found.append("No online accuracy was logged: images without labels have no probe.")
    bad = [step for step, value in zip(*run.series("train", "loss"), strict=True) if value is None]
    if bad:
        steps = f"{len(bad)} logged steps, first at step" if len(bad) > 1 else "logged step"
        found.append(f"The loss is not finite at {steps} {count(bad[0])}; the curves have gaps there.")
    epoch, epochs = look_up(run.train[-1], "epoch") if run.train else None, look_up(run.recipe, "epochs")
    if epoch is not None and epochs is not None and epochs - epoch >= 1:
        found.append(f"The log ends in epoch {epoch:.4g} of {epochs}: the run was stopped, or is still under way.")
    if few := [words for part in PARTS if (words := _few(run, part))]:
        found.append(f"The spectrum rests on {' and '.join(few)}: under ten images a dimension, the effective rank comes out too small.")
    if run.decode_errors:
        found.append(f"{count(run.decode_errors)} files could not be read as images and were skipped; decode_errors.jsonl lists them.")
    return found


def effective_rank(run: Record, part: str) -> str:
    """`45.2 of 512`, as last measured; empty where it never was."""
    _, values = run.series("spectrum", part, "effective_rank")
    if not values or values[-1] is None:
        return ""
    width = _measure(run, part, "dimensions")
    return f"{values[-1]:.1f}" + (f" of {count(width)}" if width else "")


def _filled(run: Record) -> str:
    """The effective ranks of the last spectrum, empty where there is none."""
    ranks = [f"{rank} dimensions of the {part}" for part in PARTS if (rank := effective_rank(run, part))]
    return f"At the end the embeddings fill {' and '.join(ranks)} (effective rank)." if ranks else ""


def _dead(run: Record) -> str:
    """How many dimensions the last spectrum finds dead, empty where none is, and where it has too few images to tell."""
    found = [f"{count(dead)} dimensions of the {part}" for part in PARTS if (dead := _measure(run, part, "collapsed_dimensions"))
             and not _few(run, part)]  # fmt: skip
    return f"At the end {' and '.join(found)} are dead." if found else ""


def _few(run: Record, part: str) -> str:
    """How many images the last spectrum rests on where they are fewer than ten a dimension, empty where they are enough or not known."""
    n, width = _measure(run, part, "samples"), _measure(run, part, "dimensions")
    return f"{count(n)} images for the {count(width)} dimensions of the {part}" if n and width and n < 10 * width else ""


def _measure(run: Record, part: str, key: str) -> int | float | None:
    """A number of the last spectrum measured."""
    return look_up(run.spectrum_rows[-1], part, key) if run.spectrum_rows else None


def last_accuracy(run: Record) -> str:
    """Of the online probe, on held-out images."""
    _, values = run.series("spectrum", "probe_accuracy")
    return percent(values[-1]) if values and values[-1] is not None else NOT_MEASURED


def _backbone(run: Record) -> str:
    spec: Any = look_up(run.recipe, "backbone")
    if not isinstance(spec, dict):
        return str(spec or UNKNOWN)
    arguments = ", ".join(f"{key}={value}" for key, value in (spec.get("arguments") or {}).items())
    return f"{spec.get('name', UNKNOWN)}" + (f" ({arguments})" if arguments else "")


def _length(run: Record) -> str:
    if not run.train:
        return UNKNOWN
    epoch = run.train[-1].get("epoch")
    return f"{count(run.train[-1]['step'])} steps" + (f", {epoch:.4g} epochs" if epoch is not None else "")


def count(n: int | float) -> str:
    """A whole number with thin spaces between its thousands.

    >>> count(1234567).split("\N{NARROW NO-BREAK SPACE}")
    ['1', '234', '567']
    """
    return f"{n:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def percent(share: int | float) -> str:
    """A share in percent.

    >>> percent(0.9123).split()
    ['91.2', '%']
    """
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def duration(seconds: int | float | None) -> str:
    """A duration in its two largest units.

    >>> duration(7384), duration(42.3), duration(100_000), duration(None)
    ('2 h 3 min', '42 s', '1 d 3 h', 'not recorded')
    """
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    days, hours, minutes, rest = (int(seconds // 86400), int(seconds // 3600 % 24), int(seconds // 60 % 60), int(seconds % 60))
    parts = [f"{value} {unit}" for value, unit in zip((days, hours, minutes, rest), ("d", "h", "min", "s"), strict=True)]
    first = next((k for k, value in enumerate((days, hours, minutes, rest)) if value), 3)
    return " ".join(parts[first : first + 2])
