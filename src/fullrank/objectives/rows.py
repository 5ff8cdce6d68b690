"""Functions of the rows of embeddings that objectives share, with gradients in closed form: directions, cosines, and
Gram matrices.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot

from fullrank.objectives.algebra import unit
from fullrank.objectives.closed_form import closed_form


def _norms(A: Tensor) -> Tensor:
    """Return the norm of each row, and 1 for a zero row, with an axis of length 1 at the end."""
    norm = torch.linalg.vector_norm(A, dim=-1, keepdim=True)
    return norm.masked_fill_(norm == 0, 1)


def _unit_rows(A: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    norm = _norms(A)
    U = A / norm
    return U, (U, norm)


def _unit_rows_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor]:
    (U, norm), (G,) = saved, gradients
    along = (
        torch.stack([vecdot(u, g) for u, g in zip(U, G, strict=True)]) if U.ndim > 2 else vecdot(U, G)
    )  # a small temporary
    return (torch.addcmul(G, U, along[..., None], value=-1).div_(norm),)  # without the part along the row


@closed_form(_unit_rows, _unit_rows_gradient)
def unit_rows(A: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N D"]:
    """Return the rows of A with unit norm; zero rows stay zero. Autograd would make twice the passes over A.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return unit(A, dim=-1)


def view_pairs(V: int, W: int) -> list[tuple[int, int]]:
    """Return the ordered pairs of different views, the first of V, the second of W.

    >>> view_pairs(3, 2)
    [(0, 1), (1, 0), (2, 0), (2, 1)]
    """
    return [(v, w) for v in range(V) for w in range(W) if v != w]


def _pair_cosines(A: Tensor, B: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    a, b = _norms(A), _norms(B)
    pairs = view_pairs(len(A), len(B))
    cosines = torch.stack([vecdot(A[v], B[w]).div_(a[v, :, 0]).div_(b[w, :, 0]) for v, w in pairs])
    return cosines, (a, b, cosines)


def _pair_cosines_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    (A, B), (a, b, cosines), (G,) = tensors, saved, gradients
    pairs = view_pairs(len(A), len(B))

    def tangent(A: Tensor, B: Tensor, a: Tensor, b: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
        """Return Σ_w g_vw (b̂_w − cos_vw â_v) / ‖a_v‖ for each view v; ^ means unit norm."""
        dA = torch.empty_like(A, memory_format=torch.contiguous_format)
        for v in range(len(A)):
            others = [(p, w) for p, (x, w) in enumerate(pairs) if x == v]
            along = -sum((G[p] * cosines[p] for p, _ in others), start=torch.zeros_like(G[0]))[:, None] / a[v].square()
            torch.mul(A[v], along, out=dA[v])
            for p, w in others:
                dA[v].addcmul_(B[w], G[p, :, None] / (a[v] * b[w]))
        return dA

    return (
        tangent(A, B, a, b, pairs) if needs[0] else None,
        tangent(B, A, b, a, [(w, v) for v, w in pairs]) if needs[1] else None,
    )


@closed_form(_pair_cosines, _pair_cosines_gradient)
def pair_cosines(A: Float[Tensor, "V N D"], B: Float[Tensor, "W N D"]) -> Float[Tensor, "P N"]:
    """Return the cosines of the rows of A with the rows of B of the same sample, for each pair of different views
    (`view_pairs`).

    A zero row has cosine 0. No matrix of normalised rows is kept: the gradient needs only A, B and their norms.

    >>> A = torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    >>> pair_cosines(A, A)
    tensor([[0.7071],
            [0.7071]])
    """
    A, B = unit(A, dim=-1), unit(B, dim=-1)
    return torch.stack([(A[v] * B[w]).sum(-1) for v, w in view_pairs(len(A), len(B))])


def _scatter(A: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return A.mT @ A, ()


def _scatter_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor]:
    return (tensors[0] @ (gradients[0] + gradients[0].mT),)


@closed_form(_scatter, _scatter_gradient)
def scatter(A: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V D D"]:
    """Return AᵀA. Its gradient A (G + Gᵀ) costs one product; autograd makes two, because it does not know that both
    factors are A.

    >>> scatter(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """
    return A.mT @ A


def _gram(A: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return A @ A.mT, ()


def _gram_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor]:
    return ((gradients[0] + gradients[0].mT) @ tensors[0],)


@closed_form(_gram, _gram_gradient)
def gram(A: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V N N"]:
    """Return AAᵀ, with a gradient of one product, as `scatter`.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[5., 2.],
            [2., 1.]])
    """
    return A @ A.mT


def smaller_gram(A: Float[Tensor, "*V N D"]) -> Float[Tensor, "*V M M"]:
    """Return the smaller of AᵀA and AAᵀ: they have the same eigenvalues, except for zeros.

    >>> smaller_gram(torch.ones(1, 5)), smaller_gram(torch.ones(5, 1))
    (tensor([[5.]]), tensor([[5.]]))
    """
    return scatter(A) if A.shape[-1] <= A.shape[-2] else gram(A)


def _sum_of_squares(A: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return vecdot(A, A).sum(), ()  # torch.dot and vector_norm lose digits over many millions of float32


def _sum_of_squares_gradient(
    tensors: Sequence[Tensor], saved: Sequence[Tensor], gradients: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor]:
    return (2 * gradients[0] * tensors[0],)


@closed_form(_sum_of_squares, _sum_of_squares_gradient)
def sum_of_squares(A: Float[Tensor, "*N"]) -> Float[Tensor, ""]:
    """Return the sum of all squares, without a copy of A for the squares.

    >>> sum_of_squares(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor(30.)
    """
    return A.square().sum()


def softmax_and_logsumexp(
    S: Float[Tensor, "*V N K"], *, temperature: float
) -> tuple[Float[Tensor, "*V N K"], Float[Tensor, "*V N"]]:
    """Return softmax(S/temperature) and log Σ exp(S/temperature) of each row, without gradient.

    One pass of exponentials gives both: the largest probability is exp(max − log Σ exp). No probability is much smaller
    than the smallest normal number of float32, because a processor computes ten times slower with smaller ones.

    >>> softmax_and_logsumexp(torch.tensor([[0.0, 0.0]]), temperature=0.1)  # log 2
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]))
    """
    with torch.no_grad():
        L = S / temperature
        top = L.amax(-1, keepdim=True)
        P = L.clamp_min_(top + (math.log(torch.finfo(torch.float32).tiny) + 8)).softmax(-1)
        return P, (top - P.amax(-1, keepdim=True).log()).squeeze(-1)


def _cross_entropies(S: Tensor, Q: Tensor, *, temperature: float) -> tuple[Tensor, Sequence[Tensor]]:
    P, sums = softmax_and_logsumexp(S, temperature=temperature)
    return torch.stack([sums[v] - vecdot(S[v], Q[w]) / temperature for v, w in view_pairs(len(S), len(Q))]), (P,)


def _cross_entropies_gradient(
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    *,
    temperature: float,
) -> tuple[Tensor, None]:
    (S, Q), (P,), G = tensors, saved, gradients[0] / temperature
    dS = torch.empty_like(P)
    for v in range(len(S)):
        others = [(p, w) for p, (x, w) in enumerate(view_pairs(len(S), len(Q))) if x == v]
        torch.mul(P[v], sum((G[p] for p, _ in others), start=torch.zeros_like(G[0]))[:, None], out=dS[v])
        for p, w in others:
            dS[v].addcmul_(Q[w], G[p, :, None], value=-1)
    return dS, None


@closed_form(_cross_entropies, _cross_entropies_gradient)
def cross_entropies(
    S: Float[Tensor, "V N K"], Q: Float[Tensor, "W N K"], *, temperature: float
) -> Float[Tensor, "P N"]:
    """Return − Σ_k q_wk log softmax(s_v/temperature)_k of each sample, for each pair of different views (`view_pairs`).

    Q has rows of sum 1, and gets no gradient.

    >>> cross_entropies(torch.zeros(2, 1, 4), torch.full((2, 1, 4), 0.25), temperature=0.1)  # log 4
    tensor([[1.3863],
            [1.3863]])
    """
    log_P, Q = (S / temperature).log_softmax(-1), Q.detach()
    return -torch.stack([(log_P[v] * Q[w]).sum(-1) for v, w in view_pairs(len(S), len(Q))])
