"""SimCLR: classify which embeddings are views of the same sample, by their cosine similarity (NT-Xent)."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.closed_form import closed_form
from fullrank.objectives.rows import sum_of_squares, unit_rows
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.similarities import logsumexp_others, others, others_gradient
from fullrank.objectives.terms import Terms


@checks_shapes
def simclr(Z: Float[Tensor, "V N D"], *, temperature: float = 0.2) -> Terms:
    """Return the terms of NT-Xent, the normalised temperature-scaled cross-entropy, for any number of views. With u the
    L2-normalised rows of all views, s their cosines divided by the temperature, and P(a) the V − 1 other views of the
    sample of anchor a,

        ℒ = − mean_a mean_{p ∈ P(a)} log ( exp s_ap / Σ_{b ≠ a} exp s_ab )

    which is the sum of alignment, − mean_a mean_p s_ap, and uniformity, mean_a log Σ_{b ≠ a} exp s_ab (Wang and Isola
    2020). The cost is (V N)² D. The cosines exist in blocks; the memory is a few times V·N·D, and at most
    `similarities.KEEP` cosines.

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
    U = unit_rows(Z)
    squares, sums = contrast(U, scale=1 / temperature)
    # Σ_i Σ_{v≠w} u_vi·u_wi; the second sum counts the rows that are not zero, so it has no gradient
    positives = squares - sum_of_squares(U.detach())
    return {"alignment": -positives / (temperature * N * V * (V - 1)), "uniformity": sums.mean()}


def _contrast(U: Tensor, *, scale: float) -> tuple[tuple[Tensor, Tensor], Sequence[Tensor]]:
    sums, saved = others(U.flatten(0, 1), scale=scale)
    return (sum_of_squares(U.sum(0)), sums), saved


def _contrast_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    scale: float,
) -> tuple[Tensor]:
    (U,), (of_squares, of_sums) = tensors, gradients
    (dU,) = others_gradient([U.flatten(0, 1)], saved, [of_sums], needs, scale=scale)
    return (dU.view(U.shape).add_(U.sum(0).mul_(2 * of_squares)),)


@closed_form(_contrast, _contrast_gradient)
def contrast(U: Float[Tensor, "V N D"], *, scale: float) -> tuple[Float[Tensor, ""], Float[Tensor, " M"]]:
    """Return Σ_i ‖Σ_v u_vi‖², and `logsumexp_others` of the rows of all views. Autograd would add the gradients of both
    in a new tensor.

    >>> import torch
    >>> contrast(torch.eye(2)[:, None], scale=1.0)
    (tensor(2.), tensor([0., 0.]))
    """
    return sum_of_squares(U.sum(0)), logsumexp_others(U.flatten(0, 1), scale=scale)
