"""The lead of one method over each of several others, with simultaneous intervals, and what it decides."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.stats import dunnett, ttest_ind

EQUIVALENT = 0.01  # differences within a point of accuracy are equivalence
Variance = Literal["pooled", "paired", "welch"]
Lead = tuple[float, float, float]  # mean, low, high


def simultaneous_leads(
    values: Mapping[str, Mapping[int, float]], control: str, variance: Variance = "pooled"
) -> dict[str, Lead]:
    """Return the lead of a method over each other one and its simultaneous 95 % interval.

    Args:
        values: Method → seed → a number of its run.
        control: The method whose lead it is.
        variance: pooled: Dunnett 1955, with the variance pooled over the methods (`scipy.stats.dunnett`). paired: the
            same without the effects of the seeds, whose images all methods share. welch: each pair of methods with its
            own variances, by Bonferroni.
    """
    values = {name: numbers for name, numbers in values.items() if len(numbers) > 1}
    groups = {name: np.array(list(numbers.values())) for name, numbers in values.items()}
    if variance == "paired":
        groups = _without_seeds(values)
    if control not in groups or len(groups) < 2:
        return {}
    own = groups.pop(control)
    if variance == "welch":
        tests = [ttest_ind(own, other, equal_var=False) for other in groups.values()]
        bounds = [test.confidence_interval(1 - 0.05 / len(tests)) for test in tests]
    else:
        interval = dunnett(*groups.values(), control=own, rng=0).confidence_interval()
        bounds = list(zip(-interval.high, -interval.low, strict=True))
    means = [own.mean() - x.mean() for x in groups.values()]
    return {name: (mean, low, high) for name, mean, (low, high) in zip(groups, means, bounds, strict=True)}


def _without_seeds(values: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Return the numbers of the seeds that all methods have, less the effects of the seeds; nothing of fewer than two.

    The residuals of the model with a method and a seed as effects, SS, are scaled by √(M/(M − 1)), so that the pooled
    variance of Dunnett's test is SS/((M − 1)(S − 1)). Its degrees of freedom stay M(S − 1), a tenth too many for ten
    methods.
    """
    seeds = sorted(set.intersection(*(set(numbers) for numbers in values.values()))) if values else []
    if len(seeds) < 2:
        return {}
    table = np.array([[numbers[seed] for seed in seeds] for numbers in values.values()])
    means = table.mean(1, keepdims=True)
    residuals = (table - means) - (table - means).mean(0)
    return dict(zip(values, means + math.sqrt(len(table) / (len(table) - 1)) * residuals, strict=True))


def decide(lead: Lead) -> str:
    """Return what the interval of a lead decides: "ahead" and "behind" if it excludes 0, else "equivalent" if it is
    within `EQUIVALENT`, else "undecided".

    >>> [decide(lead) for lead in ((0.02, 0.015, 0.025), (0.002, -0.004, 0.008), (0.0, -0.02, 0.02))]
    ['ahead', 'equivalent', 'undecided']
    """
    _, low, high = lead
    if low > 0 or high < 0:
        return "ahead" if low > 0 else "behind"
    return "equivalent" if max(-low, high) < EQUIVALENT else "undecided"


def describe_lead(lead: Lead | None) -> str:
    """Return a lead and its interval in points, and what it decides.

    >>> describe_lead((0.02, 0.015, 0.025)), describe_lead((0.005, 0.002, 0.008)), describe_lead(None)
    ('+2.00 (1.50 to 2.50), ahead', '+0.50 (0.20 to 0.80), ahead by less than a point', '')
    """
    if lead is None:
        return ""
    (mean, low, high), word = (100 * x for x in lead), decide(lead)
    small = word in ("ahead", "behind") and max(-low, high) < 100 * EQUIVALENT
    text = f"{mean:+.2f} ({low:.2f} to {high:.2f}), {word}{' by less than a point' if small else ''}"
    return text.replace("-0.00", "0.00")
