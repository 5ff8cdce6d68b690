"""The weights that keep the balance of an objective's terms when the batch, the projector or the views change."""

import math
from typing import TYPE_CHECKING

from fullrank.recipes import user_code

if TYPE_CHECKING:
    from fullrank.recipes.recipe import Recipe


def balanced_weights(recipe: "Recipe") -> dict[str, float]:
    """Return the weights that keep the balance of an objective's terms: that of its reference, for other N, D and V.

    | objective | weight | reference |
    |---|---|---|
    | frossl | invariance 4N/D · √(2/(V(V − 1))) | 1 at N = 256, D = 1024, V = 2, of the paper |
    | | variance 1; without logarithms min(D, N − 1)/D², whose gradient is that with them at the optimum | |
    | barlow_twins | redundancy 0.0051 · 2047/(D − 1) | D = 2048, of solo-learn on CIFAR |
    | vicreg | covariance 2047/(D − 1) | D = 2048, of solo-learn on CIFAR |
    | simclr | temperature 1/(5 + log((N − 1)/255)), at most 1 | 0.2 at N = 256, of solo-learn on CIFAR |
    | ivne | alignment log N | its authors' rule; does not keep the balance of the gradients |

    SimCLR's rule is for two views. Empty for another objective, and where D is not the last width of an MLP. A weight
    "balanced" in `hyper` becomes this number. Source: docs/derivations/balance.md.

    >>> from fullrank.recipes import Recipe
    >>> [balanced_weights(recipe) for recipe in (Recipe(), Recipe(batch_size=64), Recipe(objective="vicreg"))]
    [{'invariance': 1.0, 'variance': 1.0}, {'invariance': 0.25, 'variance': 1.0}, {'covariance': 2.0009775171065494}]
    """
    N, V, projector = recipe.batch_size, sum(view.count for view in recipe.views), recipe.projector
    if V < 2 or projector.kind != "mlp" or projector.absent:
        return {}
    D = projector.widths[-1]
    match recipe.objective:
        case "frossl":
            hyper = user_code.hyperparameters(user_code.find_objective("frossl")) | recipe.hyper
            variance = 1.0 if hyper["log"] else min(D, N - 1) / D**2
            return {"invariance": 4 * N / D * math.sqrt(2 / (V * (V - 1))), "variance": variance}
        case "barlow_twins":
            return {"redundancy": 0.0051 * 2047 / max(D - 1, 1)}
        case "vicreg":
            return {"covariance": 2047 / max(D - 1, 1)}
        case "simclr":
            return {"temperature": 1 / max(5 + math.log(max(N - 1, 1) / 255), 1)}
        case "ivne":
            return {"alignment": math.log(max(N, 2))}
    return {}
