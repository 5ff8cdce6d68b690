"""SimCLR: classify which embeddings are views of the same sample, by their cosine similarity (NT-Xent)."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import unit
from fullrank.objectives.faster import fast
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
@fast("pairs:simclr")
def simclr(Z: Float[Tensor, "V N D"], *, temperature: float = 0.2) -> Terms:
    """Return the terms of NT-Xent, the normalised temperature-scaled cross-entropy, for any number of views. With u the
    L2-normalised rows of all views, s their cosines divided by the temperature, and P(a) the V − 1 other views of the
    sample of anchor a,

        ℒ = − mean_a mean_{p ∈ P(a)} log ( exp s_ap / Σ_{b ≠ a} exp s_ab )

    which is the sum of alignment, − mean_a mean_p s_ap, and uniformity, mean_a log Σ_{b ≠ a} exp s_ab (Wang and Isola
    2020). The cost is (V N)² D. The memory is at most (V N)².

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations, eq. 1; for V > 2
    the mean over positives outside the logarithm, as in Khosla et al. 2020, Supervised Contrastive Learning, eq. 2.

    When all embeddings are equal, the loss is that of a random guess, log(V N − 1):

    >>> import torch
    >>> terms = simclr(torch.ones(2, 8, 3))
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(15.0).log()
    (tensor(2.7081), tensor(2.7081))
    """
    V, N, _ = Z.shape
    U = unit(Z, dim=-1)
    S = (U / temperature).flatten(0, 1) @ U.flatten(0, 1).mT  # (V N, V N), the cosines divided by the temperature
    itself = torch.eye(V * N, dtype=torch.bool, device=Z.device)
    positives = U.sum(0).square().sum() - U.detach().square().sum()  # Σ_i Σ_{v≠w} u_vi·u_wi
    return {
        "alignment": -positives / (temperature * N * V * (V - 1)),
        "uniformity": S.masked_fill(itself, -torch.inf).logsumexp(-1).mean(),
    }
