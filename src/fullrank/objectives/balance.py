"""The weights that keep the balance of an objective's terms when the batch, the dimension or the views change."""

import math


def balance(objective: str, *, N: int, D: int, V: int, log: bool = True) -> dict[str, float]:
    """Return the weights that keep the balance of an objective's terms: that of its reference, for other N, D and V.

    | objective | weight | reference |
    |---|---|---|
    | frossl | invariance 4N/D · √(2/(V(V − 1))) | 1 at N = 256, D = 1024, V = 2, of the paper |
    | | variance 1; without logarithms min(D, N − 1)/D², whose gradient is that with them at the optimum | |
    | barlow_twins | redundancy 0.0051 · 2047/(D − 1) | D = 2048, of solo-learn on CIFAR |
    | vicreg | covariance 2047/(D − 1) | D = 2048, of solo-learn on CIFAR |
    | simclr | temperature 1/(5 + log((N − 1)/255)), at most 1 | 0.2 at N = 256, of solo-learn on CIFAR |
    | ivne | alignment log N | its authors' rule; does not keep the balance of the gradients |

    VICReg's rule is for its invariance and variance of 25, SimCLR's for two views. Empty for another objective. Source:
    docs/derivations/balance.md.

    Args:
        objective: the name of the objective.
        N: number of samples of the whole batch.
        D: dimensions of an embedding.
        V: number of views, at least 2.
        log: whether FroSSL has its logarithms.

    >>> balance("frossl", N=64, D=1024, V=2), balance("simsiam", N=64, D=1024, V=2)
    ({'invariance': 0.25, 'variance': 1.0}, {})
    """
    match objective:
        case "frossl":
            variance = 1.0 if log else min(D, N - 1) / D**2
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
