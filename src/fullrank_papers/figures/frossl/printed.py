"""The accuracies that the tables of the papers print."""

from fullrank.recipes.catalog import SCORES


def printed_in(table: str) -> dict[str, dict[tuple[str, int], float]]:
    """Return what a table prints, also where it took it from others: method → (data set, epochs) → accuracy in percent.

    >>> printed_in("Skean et al. 2023, Table 3")["frossl"][("stl10", 3)]
    44.8
    """
    found: dict[str, dict[tuple[str, int], float]] = {}
    for data_set, method, score in SCORES:
        if score.source.startswith(table):
            found.setdefault(method, {})[data_set, score.epochs] = round(100 * score.accuracy, 2)
    return found
