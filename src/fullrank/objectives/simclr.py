"""SimCLR: classify which embeddings are views of the same sample, by their cosine similarity (NT-Xent)."""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.rows import square_of_sum, sum_of_squares, unit_rows
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.similarities import logsumexp_others
from fullrank.objectives.terms import Terms


@checks_shapes
def simclr(Z: Float[Tensor, "V N D"], *, temperature: float = 0.2) -> Terms:
    """Return the terms of NT-Xent, the normalised temperature-scaled cross-entropy, for any number of views. With u the L2-normalised
    rows of all views, s their cosines divided by the temperature, and P(a) the V − 1 other views of the sample of anchor a,

        ℒ = − mean_a mean_{p ∈ P(a)} log ( exp s_ap / Σ_{b ≠ a} exp s_ab )

    which is the sum of alignment, − mean_a mean_p s_ap, and uniformity, mean_a log Σ_{b ≠ a} exp s_ab (Wang and Isola 2020).
    The cost is (V N)² D. The cosines exist in blocks, of which at most `similarities.KEEP` numbers are kept, so that the memory is a few
    times V·N·D for any batch.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations, eq. 1; for V > 2 the mean over
    positives outside the logarithm, as in Khosla et al. 2020, Supervised Contrastive Learning, eq. 2.

    When all embeddings are equal, the loss is that of a random guess, log(V N − 1):

    >>> import torch
    >>> terms = simclr(torch.ones(2, 8, 3))
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(15.0).log()
    (tensor(2.7081), tensor(2.7081))
    """
    V, N, _ = Z.shape
    U = unit_rows(Z)
    # Σ_i Σ_{v≠w} u_vi·u_wi; the second sum counts the rows that are not zero, so it has no gradient
    positives = square_of_sum(U) - sum_of_squares(U.detach())
    return {
        "alignment": -positives / (temperature * N * V * (V - 1)),
        "uniformity": logsumexp_others(U.flatten(0, 1), scale=1 / temperature).mean(),
    }
