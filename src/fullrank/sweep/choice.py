"""The choice of a setting, such as the learning rate, by the mean score of its runs."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from fullrank.sweep.cell import Setting
from fullrank.sweep.row import Row


def choose(
    rows: Iterable[Row], key: str, group: Sequence[str], score: Callable[[Row], float | None]
) -> dict[tuple[Setting, ...], Setting]:
    """Return the value of the setting `key` with the best mean score, for each combination of the settings in `group`.

    A value at which a run diverged is not chosen. A combination has no choice if a run failed for another reason, or if
    all of its values diverged. Of equal scores, the first value wins.

    Args:
        rows: the rows of all values, done or failed; rows without the setting `key` are ignored.
        key: name of the setting to choose.
        group: names of the settings for each combination of which one value is chosen.
        score: the score of a row, higher is better; None if the row has none.

    Returns:
        A dict: the values of the settings in `group`, as a tuple → the chosen value of `key`.

    >>> def row(lr, accuracy):
    ...     return Row(cell=f"{lr}", recipe="digits", objective="frossl", seed=9, status="done", data="digits",
    ...                settings={"objective": "frossl", "optimizer.lr": lr}, scores={"digits": {"linear": accuracy}})
    >>> choose([row(0.1, 0.5), row(0.3, 0.7)], "optimizer.lr", ["objective"], lambda row: row.score("linear"))
    {('frossl',): 0.3}
    """
    found: dict[tuple[Setting, ...], dict[Setting, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if key in row.settings:
            found[tuple(row.settings.get(name, "") for name in group)][row.settings[key]].append(row)
    choices: dict[tuple[Setting, ...], Setting] = {}
    for combination, values in found.items():
        if any(not row.is_final for runs in values.values() for row in runs):
            continue
        means: dict[Setting, float] = {}
        for value, runs in values.items():
            scores = [each for row in runs if not row.diverged and (each := score(row)) is not None]
            if len(scores) == len(runs):
                means[value] = statistics.fmean(scores)
        if means:
            choices[combination] = max(means, key=lambda value: means[value])
    return choices


def edge_of_grid(chosen: Setting, tried: Iterable[Setting]) -> str:
    """Return as text whether a chosen number is the smallest or the largest of those tried: a wider grid may then have
    a better one.

    >>> edge_of_grid(0.3, [0.1, 0.3]), edge_of_grid(0.2, [0.1, 0.2, 0.3]), edge_of_grid("relu", ["relu", "gelu"])
    ('largest of 2', '', '')
    """
    numbers = [value for value in {chosen, *tried} if isinstance(value, int | float) and not isinstance(value, bool)]
    if chosen not in numbers or len(numbers) < 2:
        return ""
    edges = {min(numbers): "smallest", max(numbers): "largest"}
    return f"{edges[chosen]} of {len(numbers)}" if chosen in edges else ""
