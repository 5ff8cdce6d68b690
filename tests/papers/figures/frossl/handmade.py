"""Hand-made rows of the comparison: what its runs would have measured."""

from dataclasses import asdict

from fullrank.sweep import OnlineScore, Row
from fullrank_papers.figures.frossl.comparison import RATE


def row(method, seed, accuracy, *, stage="compared", rate=0.01, online=(), diverged=False, scores=None, **settings):
    """Return the row of a run; `settings` are further settings of an ablation."""
    return Row(
        cell="-".join(map(str, (method, stage, rate, *settings.values(), seed))),
        settings={"method": method, RATE: rate, "stage": stage, **settings},
        recipe="cifar10-compared",
        objective=method,
        seed=seed,
        status="failed" if diverged else "done",
        diverged=diverged,
        error="the loss is not finite" if diverged else "",
        data="CIFAR-10",
        epochs=20.0,
        train_images=5000,
        seconds=70.0,
        scores={} if diverged else scores or {"CIFAR-10": {"linear": accuracy, "knn": accuracy}},
        effective_rank={"backbone": 20.0, "projector": 80.0},
        online=tuple(OnlineScore(*score) for score in online),
    )


def as_result(rows):
    """Return the rows of a result."""
    found = [asdict(row) for row in rows]
    return {"rows": found, "cells": len(found)}


def answer(plan, accuracy, *, diverged=lambda cell: False):
    """Return the cells of a plan and their rows, stage by stage; `accuracy` is a function of a cell."""
    cells, rows = [], []
    while missing := [cell for cell in plan(rows) if cell.name not in {known.name for known in cells}]:
        cells += missing
        for cell in missing:
            settings = {"rate" if key == RATE else key: value for key, value in cell.settings.items()}
            method, seed = settings.pop("method"), cell.recipe.seed
            rows.append(row(method, seed, accuracy(cell), diverged=diverged(cell), **settings))
    return cells, rows
