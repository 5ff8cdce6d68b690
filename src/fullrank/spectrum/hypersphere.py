"""Views of the same images: alignment and uniformity on the unit sphere, and the correlation of the views."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum.functional import check_finite
from fullrank.spectrum.moments import check_embeddings, to_float64


def alignment(X: Float[Tensor, "n D"], Y: Float[Tensor, "n D"]) -> float:
    """Return the alignment mean_i ‖x_i − y_i‖² of L2-normalised rows: 0 for equal views, 2 for orthogonal views, at
    most 4.

    Alignment does not detect collapse: embeddings that are all equal are perfectly aligned. The function normalises the
    rows; a row of zeros stays zero.

    Args:
        X: embeddings of one view of n ≥ 1 images.
        Y: embeddings of another view of the same images.

    Raises:
        UserError: X has no rows, the shapes differ, or an embedding is NaN or infinite.

    Source: Wang and Isola 2020, Understanding Contrastive Representation Learning through Alignment and Uniformity on
    the Hypersphere, with α = 2.

    >>> alignment(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    1.0
    """
    X, Y = normalize_rows(X), normalize_rows(Y)
    if not len(X):
        raise UserError("X has no rows, expected at least one pair of views")
    if X.shape != Y.shape:
        shapes = f"X has shape {tuple(X.shape)} and Y has shape {tuple(Y.shape)}"
        raise UserError(f"{shapes}, expected two views (n, D) of the same images")
    return (X - Y).square().sum(1).mean().item()


def uniformity(X: Float[Tensor, "n D"], *, chunk: int = 1024) -> float:
    """Return the uniformity log mean_{i<j} exp(−2 ‖x_i − x_j‖²) of L2-normalised rows: 0 if all rows are equal, about
    −4 + 8/D if they fill the sphere.

    The mean is over pairs i < j: if the n pairs i = j counted, the value could never fall below −log n. Embeddings in a
    subspace of r dimensions have about −4 + 8/r, so uniformity hardly shows dimensional collapse if r is a few dozen or
    more.

    Args:
        X: embeddings of n ≥ 2 images, one view per image.
        chunk: number of rows of the distance matrix in memory at a time; the value does not depend on this number.

    Raises:
        UserError: X has fewer than two rows, is not floating-point (n, D), or has an embedding that is NaN or infinite;
            or chunk < 1.

    Source: Wang and Isola 2020, eq. 2, with t = 2.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])), 4)  # log((2 e⁻⁴ + 1)/3)
    -1.0626
    """
    X = normalize_rows(X)
    if chunk < 1:
        raise UserError(f"chunk is {chunk}, expected at least one row at a time")
    n = len(X)
    if n < 2:
        raise UserError(f"X has {n} rows, expected at least 2: uniformity is a mean over pairs")
    squares = X.square().sum(1)
    total = 0.0
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        distances = squares[rows, None] + squares[start:] - 2 * X[rows] @ X[start:].mT  # (chunk, n − start)
        total += torch.exp(-2 * distances.clamp_min(0)).triu(1).sum().item()
    return math.log(total / (n * (n - 1) / 2))


def normalize_rows(X: Float[Tensor, "n D"]) -> Float64[Tensor, "n D"]:
    """Return X / ‖x_i‖ in float64; a row of zeros stays zero.

    Raises:
        UserError: X is not floating-point (n, D), or an embedding is NaN or infinite.

    >>> normalize_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    check_embeddings(X)
    X = to_float64(X)
    check_finite(X, "X")
    largest = X.abs().amax(1, keepdim=True)
    X = X / largest.masked_fill(largest == 0, 1)  # so that no square overflows or vanishes
    norms = X.norm(dim=1, keepdim=True)
    return X / norms.masked_fill(norms == 0, 1)


def intraclass_correlation(R: Float[Tensor, "V n D"]) -> float | None:
    """Return the share of variance that the views of one image have in common: 1 for equal, 0 for uncorrelated views.

    ρ = Σ_i Σ_{v≠w} ⟨r_vi, r_wi⟩ / ((V − 1) Σ_i Σ_v ‖r_vi‖²), centred over all views and images (Fisher 1925, § 38),
    computed from Σ_{v≠w} ⟨r_v, r_w⟩ = ‖Σ_v r_v‖² − Σ_v ‖r_v‖². Uncorrelated views of n images have |ρ| of at most about
    1/√n.

    Args:
        R: (V, n, D) representations of a batch.

    Returns:
        None for a single view, or if the variance is zero.

    >>> R = torch.randn(1, 8, 3)
    >>> round(intraclass_correlation(torch.cat([R, R])), 6), intraclass_correlation(R)
    (1.0, None)
    """
    A = to_float64(R)
    A = A - A.mean((0, 1))
    V, square = len(A), A.square().sum()
    return None if V < 2 or not square > 0 else ((A.sum(0).square().sum() / square - 1) / (V - 1)).item()
