"""SwAV: predict from each view the cluster assignment of another view of the sample; the clusters have equal sizes."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_products, unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


def swav_queue(Z: Float[Tensor, "V N D"], queue: Float[Tensor, "full size D"]) -> Float[Tensor, "full size D"]:
    """Return the queue after a batch: the L2-normalised embeddings of each full-size view, first in first out, newest
    rows first.

    >>> swav_queue(torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor([[[0.6000, 0.8000],
             [1.0000, 0.0000]]])
    """
    full, size, _ = queue.shape
    return torch.cat([unit(Z[:full].detach(), dim=-1), queue.detach()], dim=1)[:, :size]


@checks_shapes
def swav(
    S: Float[Tensor, "V N K"],
    queue: Float[Tensor, "full size K"] | None = None,
    *,
    full: int = 2,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Terms:
    """Return the term of SwAV, with multi-crop. With q_w the codes of view w ≤ full, from `sinkhorn` on the whole batch
    without gradient,

        ℒ = − mean_{w ≤ full, v ≠ w} mean_i Σ_k q_wik log softmax(s_vi/temperature)_k

    The codes use all prototypes equally, so that complete collapse has loss log K. With a queue, Sinkhorn's algorithm
    assigns the samples of the batch together with those of the queue, so that prototypes are used equally by all of
    them; only the codes of the batch enter the loss. The cost and the memory are a few times V·(N + size)·K.

    Args:
        S: cosines between embeddings and K prototypes, for V ≥ 2 views of N samples; full-size views come first.
        queue: cosines between the embeddings of earlier samples and the K prototypes, for each full-size view; None: no
            queue.
        full: number of full-size views; only these are assigned to prototypes.
        temperature: divides the cosines in the prediction.
        epsilon: divides the cosines in the assignment; the weight of the assignment's entropy.
        iterations: iterations of Sinkhorn's algorithm.

    Returns:
        The term "prediction".

    Source: Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, eq. 1, 2 and
    6, and Section 4.2 for the queue; the mean over pairs as in the authors' code.

    When all cosines are equal, the loss is log K:

    >>> import torch
    >>> swav(torch.full((2, 8, 4), 0.5)), torch.tensor(4.0).log()
    ({'prediction': tensor(1.3863)}, tensor(1.3863))
    """
    targets = S[:full].detach()
    samples = targets if queue is None else torch.cat([targets, queue.detach()], dim=1)
    codes = sinkhorn(samples, epsilon=epsilon, iterations=iterations)[:, : S.shape[1]]
    return {"prediction": -pair_products((S / temperature).log_softmax(-1), codes).mean()}


def sinkhorn(S: Float[Tensor, "*V N K"], *, epsilon: float, iterations: int) -> Float[Tensor, "*V N K"]:
    """Assign samples to prototypes: Diag(a) exp(S/epsilon) Diag(b), where each sample sums to 1, and each prototype to
    N/K in the limit.

    Each iteration scales first the prototypes, then the samples; only the factors a and b change. exp(S/epsilon) could
    underflow in a complete row or column. So the maximum of each column is subtracted from its logarithms, and the rows
    are normalised by softmax: every row and every column then has an entry of at least 1/K. The codes have no gradient.

    Args:
        S: similarities of N samples and K prototypes; leading dimensions are assigned separately.
        epsilon: weight of the entropy; a small value gives nearly hard assignments.
        iterations: number of iterations, at least 1.

    Returns:
        The codes. Those of a sample sum to 1 after any number of iterations; the sum of a prototype converges to N/K.

    Source: Cuturi 2013, Sinkhorn Distances: Lightspeed Computation of Optimal Transport, Algorithm 1; Caron et al.
    2020, eq. 3 to 5.

    Both samples are closest to the first prototype; the sample with the smaller difference is assigned to the second:

    >>> import torch
    >>> sinkhorn(torch.tensor([[0.9, 0.5], [0.9, 0.1]]), epsilon=0.2, iterations=20)
    tensor([[0.2689, 0.7311],
            [0.7311, 0.2689]])
    """
    L = (S - S.amax(-2, keepdim=True)) / epsilon
    P = L.softmax(-1)
    a = L.logsumexp(-1, keepdim=True).exp().mT  # (1, N), and b (1, K)
    for _ in range(iterations):
        b = 1 / (a @ P)
        a = 1 / (b @ P.mT)
    return P * a.mT * b
