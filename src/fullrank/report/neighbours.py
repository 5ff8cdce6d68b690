"""The result of `fullrank neighbours` in sentences."""

from fullrank.evaluation.neighbourhood import Neighbours


def summary(found: Neighbours) -> list[str]:
    """Return what was found, one sentence an item."""
    counts = {part: found.splits.count(part) for part in found.parts}
    parts = f" ({', '.join(f'{part} {count:,}' for part, count in counts.items())})" if len(counts) > 1 else ""
    lines = [f"{len(found):,} images of {found.source}{parts}, embedded by {found.model}."]
    equal = sum(pair.equal for pair in found.duplicates)
    lines.append(
        f"{_count(len(found.duplicates), 'pair')} of near-duplicates (correlation ≥ {found.threshold:g}), {equal:,} of them equal."
    )
    lines += [
        f"{_count(count, 'pair')} {'lies' if count == 1 else 'lie'} across {a} and {b}."
        for (a, b), count in _leaks(found).items()
    ]
    doubtful = len(found.doubtful_labels(len(found)))
    if doubtful:
        lines.append(f"The neighbours of {_count(doubtful, 'image')} agree on another label.")
    return lines


def _leaks(found: Neighbours) -> dict[tuple[str, str], int]:
    return {pair: count for pair, count in found.across_splits().items() if pair[0] != pair[1]}


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
