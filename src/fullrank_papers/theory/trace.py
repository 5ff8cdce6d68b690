"""Two-layer linear networks with orthonormal weights under a trace loss: vector fields and steps of the weights and of
the outputs.

Shapes: d inputs, h hidden units, z outputs; W1 (h, d), W2 (h, z), and the network u(x) = W2ᵀW1x = Aᵀx. In the
eigenbasis C = VΛVᵀ, λ ascending, the outputs are q = VᵀA (d, z). Time is learning rate × step of the loss exactly as
given: C is symmetric, a sum over n unless it is averaged, and every rate and stability limit scales with it. `flow` is
a name in `FLOWS`, and `eigenvalues` are λ. Use float64.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError, pick
from fullrank_papers.theory.checks import check_output_length, rounding_tolerance
from fullrank_papers.theory.flow import Params, gradient_descent_iterates, solve_ode
from fullrank_papers.theory.optimum import forced_rank

FLOWS: dict[str, tuple[float, float]] = {"horizontal": (2.0, 2.0), "polar": (1.0, 3.0), "canonical": (0.0, 4.0)}
"""The flows that keep the columns of W1 and W2 orthonormal, each with its (a, b) of `output_vector_field`."""


def trace_loss(W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], C: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """Return the loss Tr(W2ᵀW1 C W1ᵀW2) = Tr(qᵀΛq).

    Source: Esser et al. 2023, eq. 8 (Proposition 3 means it too, but prints a squared norm, which is never negative).

    >>> trace_loss(torch.eye(2), torch.eye(2), -torch.eye(2))
    tensor(-2.)
    """
    A = W1.mT @ W2
    return (A * (C @ A)).sum()


def scaled_loss(W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], C: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """Return Tr(W2ᵀW1 C W1ᵀW2) / (‖W1‖₂² ‖W2‖₂²) with spectral norms, which needs no constraint and ignores the scale
    of the weights.

    Source: Esser et al. 2023, Proposition 3, formulation 1.

    >>> scaled_loss(2 * torch.eye(2), 3 * torch.eye(2), -torch.eye(2))
    tensor(-2.)
    """
    return trace_loss(W1, W2, C) / (torch.linalg.matrix_norm(W1, 2) * torch.linalg.matrix_norm(W2, 2)).square()


def trace_loss_gradients(
    W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], C: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h z"]]:
    """Return the gradients G1 = 2W2AᵀC and G2 = 2W1CA of `trace_loss`, A = W1ᵀW2.

    >>> trace_loss_gradients(torch.eye(1), torch.eye(1), -torch.eye(1))
    (tensor([[-2.]]), tensor([[-2.]]))
    """
    CA = C @ (W1.mT @ W2)
    return 2 * W2 @ CA.mT, 2 * W1 @ CA


def orthonormal_weights(
    d: int, *, hidden: int, outputs: int, generator: torch.Generator
) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h z"]]:
    """Draw W1 (h, d) and W2 (h, z), W1ᵀW1 = I and W2ᵀW2 = I, each uniform on its Stiefel manifold, float64.

    Raises:
        UserError: fewer hidden units than inputs or outputs; such weights do not exist.

    Source: Esser et al. 2023, constraints of eq. 8.

    >>> W1, W2 = orthonormal_weights(2, hidden=5, outputs=3, generator=torch.Generator().manual_seed(0))
    >>> W1.shape, W2.shape
    (torch.Size([5, 2]), torch.Size([5, 3]))
    """
    forced_rank(d, hidden=hidden, outputs=outputs)  # raises if such weights do not exist
    gaussians = (torch.randn(hidden, columns, dtype=torch.float64, generator=generator) for columns in (d, outputs))
    W1, W2 = (polar_factor(G) for G in gaussians)
    return W1, W2


def weight_vector_field(
    W1: Float[Tensor, "h d"], W2: Float[Tensor, "h z"], C: Float[Tensor, "d d"], *, flow: str = "horizontal"
) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h z"]]:
    """Return W1′ and W2′ of a flow that keeps the columns orthonormal. For each layer, with G its gradient:

        horizontal  W′ = −(I − WWᵀ)G                  the paper's; not the constrained gradient flow (see below)
        polar       W′ = −(G − W(WᵀG + GᵀW)/2)        gradient flow on the Stiefel manifold with the embedded metric
        canonical   W′ = −(G − WGᵀW)                  with the canonical metric

    ℒ depends on more than span W1, so the horizontal flow is not the gradient flow under the constraint. The unit of
    time is learning rate × step.

    Raises:
        UserError: an unknown flow, h < d or h < z.

    Source: Esser et al. 2023, Theorem 2 (horizontal); Edelman, Arias and Smith 1998, Sec. 2 (the metrics).

    >>> W = torch.eye(2)[:, :1]
    >>> weight_vector_field(W, W, -torch.eye(1))[0].abs()
    tensor([[0.],
            [0.]])
    """
    a, b = pick(flow, FLOWS, "flow")
    forced_rank(W1.shape[1], hidden=len(W1), outputs=W2.shape[1])
    G1, G2 = trace_loss_gradients(W1, W2, C)
    inner1, inner2 = W1.mT @ G1, W2.mT @ G2  # (a, b − 2)/2 is (1, 0), (½, ½) or (0, 1)
    return W1 @ (a * inner1 + (b - 2) * inner1.mT) / 2 - G1, W2 @ (a * inner2 + (b - 2) * inner2.mT) / 2 - G2


def projected_gradient_step(
    W1: Float[Tensor, "h d"],
    W2: Float[Tensor, "h z"],
    C: Float[Tensor, "d d"],
    *,
    learning_rate: float,
) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h z"]]:
    """Return both layers after a gradient step and a projection to the nearest matrix with orthonormal columns, (W −
    ηG)(…)^{−½}.

    To first order in η the outputs follow the polar flow of `output_vector_field`. (A QR factorisation follows none of
    the flows: its result depends on the basis.)

    W1 and W2 have orthonormal columns, and η is the learning rate.

    Raises:
        UserError: h < d or h < z.

    Source: Esser et al. 2023, eq. 11 (corrected: the paper prints + η, which is ascent).

    >>> W = torch.eye(2)
    >>> projected_gradient_step(W, W, torch.diag(torch.tensor([-1.0, 1.0])), learning_rate=0.1)[0]
    tensor([[1., 0.],
            [0., 1.]])
    """
    forced_rank(W1.shape[1], hidden=len(W1), outputs=W2.shape[1])
    G1, G2 = trace_loss_gradients(W1, W2, C)
    return polar_factor(W1 - learning_rate * G1), polar_factor(W2 - learning_rate * G2)


def projected_gradient_descent(
    loss: Callable[[Params], Tensor], weights: Params, *, learning_rate: float
) -> Iterator[Params]:
    """Yield the weights at steps 0, 1, … without end: each layer W ← the nearest matrix with orthonormal columns to W −
    η∇ℒ(W).

    This is `projected_gradient_step` for any loss, so the network can be nonlinear. To first order in η it follows the
    gradient flow on the constraint, W′ = −(G − W(WᵀG + GᵀW)/2) with G = ∇ℒ. Weights are float64 matrices with
    orthonormal columns.

    Source: Esser et al. 2023, eq. 11 (corrected: the paper prints + η, which is ascent) and Conjecture 1, for any
    activation.

    >>> W = torch.eye(2, dtype=torch.float64)[:, :1]
    >>> steps = projected_gradient_descent(lambda w: w[0][1, 0], (W,), learning_rate=1.0)
    >>> [step[0].flatten() for step, _ in zip(steps, range(2))]
    [tensor([1., 0.], dtype=torch.float64), tensor([ 0.7071, -0.7071], dtype=torch.float64)]
    """
    return gradient_descent_iterates(loss, weights, learning_rate=learning_rate, project=polar_factor)


def output_vector_field(
    q: Float[Tensor, "d z"], eigenvalues: Float[Tensor, " d"], *, flow: str = "horizontal"
) -> Float[Tensor, "d z"]:
    """Return the velocity of the outputs q = VᵀW1ᵀW2 under `weight_vector_field`. It depends neither on the weights nor
    on the width h:

        q′ = −[4Λq − a Λqqᵀq − b qqᵀΛq],    (a, b) = (2, 2) horizontal, (1, 3) polar, (0, 4) canonical

    All three have the same fixed points. Around the minimum, outputs turn at the rates 2 : 3 : 4 times (λ_j − λ₁).

    Raises:
        UserError: an unknown flow.

    Source: Esser et al. 2023, Theorem 2, eq. 9 (the horizontal one; corrected: projected gradient descent follows the
    polar one).

    >>> output_vector_field(torch.tensor([[1.0], [0.0]]), torch.tensor([-1.0, 2.0])).abs()
    tensor([[0.],
            [0.]])
    """
    a, b = pick(flow, FLOWS, "flow")
    Lq = eigenvalues[:, None] * q
    return -(4 * Lq - a * Lq @ (q.mT @ q) - b * q @ (q.mT @ Lq))


def canonical_outputs(
    q0: Float[Tensor, "d z"], eigenvalues: Float[Tensor, " d"], t: Float[Tensor, "*T"]
) -> Float[Tensor, "*T d z"]:
    """Return the solution of the canonical flow q′ = −4(I − qqᵀ)Λq. With E = e^{−4Λt},

        q(t) = E q₀ (I − q₀ᵀq₀ + q₀ᵀE²q₀)^{−½}

    It is exact for one output. For more it is exact up to a rotation of the outputs, which changes neither qqᵀ nor the
    loss. Singular values of q₀ are at most 1, as those of all W1ᵀW2 with orthonormal columns; those that are 1 stay 1.

    Raises:
        UserError: outputs longer than 1; times so late that fewer directions than outputs are above the smallest float.

    Source: the matrix Riccati equation of qqᵀ, as in Yan, Helmke and Moore 1994.

    >>> canonical_outputs(torch.tensor([[0.6], [0.8]]), torch.tensor([-1.0, 1.0]), torch.tensor(0.25))
    tensor([[0.9841],
            [0.1776]])
    """
    start = _lift(q0)
    spectrum = torch.cat([eigenvalues, eigenvalues.new_zeros(len(start) - len(q0))])
    nonzero = (start != 0).any(-1)
    lowest = spectrum.where(nonzero, torch.inf).min()
    E = torch.exp(-4 * (spectrum - lowest).where(nonzero, 0) * t[..., None])[..., None]
    order = spectrum.argsort()  # in descending order of size, the rows of a polar factor keep their digits
    stacked = (E * start)[..., order, :]
    if ((stacked != 0).any(-1).sum(-1) < q0.shape[1]).any():
        raise UserError(f"by t = {t.max():g} outputs are too small for any float; take earlier t, or their limit")
    return polar_factor(stacked)[..., order.argsort(), :][..., : len(q0), :]


def stability_limit(
    eigenvalues: Float[Tensor, " d"], *, outputs: int, forced: int = 0, flow: str = "horizontal"
) -> float:
    """Return the learning rate below which `euler_outputs` converges to the minimum: 2 over the fastest rate around it,
    the smallest of

        1 / (4|λ₁|)         if λ₁ < 0 and an output can be shorter than 1: the radial rate 8|λ₁|
        2 / (b(λ_d − λ₁))   if outputs can turn, with b of the flow: 1 / (λ_d − λ₁) for the horizontal one
        1 / (2λ_d)          if an output must vanish: negative eigenvalues and forced singular values each fewer than z

    Up to 1 / (8|λ₁|) the length of an output grows without overshoot. If C is a sum over n samples, the limit is ~ 1/n.

    Args:
        eigenvalues: λ, of C.
        outputs: z.
        forced: the number of singular values that are forced to 1 (`forced_rank`), and cannot vanish or be too short.
        flow: a name in `FLOWS`.

    Raises:
        UserError: an unknown flow.

    Source: linearisation of Esser et al. 2023, eq. 12 (the paper gives no bound).

    >>> stability_limit(torch.tensor([-1.0, 4.0]), outputs=1)
    0.2
    >>> [stability_limit(torch.tensor([1.0, 4.0]), outputs=1, forced=k) for k in (1, 0)]  # sphere, ball
    [0.3333333333333333, 0.125]
    """
    _, b = pick(flow, FLOWS, "flow")
    low, high = eigenvalues.min().item(), eigenvalues.max().item()
    rank = max(min(outputs, int((eigenvalues < 0).sum())), forced)  # how many outputs do not vanish
    radial = -8 * low if rank > forced else 0.0
    turning = b * (high - low) if 0 < rank < len(eigenvalues) else 0.0
    fastest = max(radial, turning, 4 * high if rank < outputs else 0.0)
    return 2 / fastest if fastest > 0 else float("inf")


def euler_outputs(
    q0: Float[Tensor, "d z"],
    eigenvalues: Float[Tensor, " d"],
    *,
    learning_rate: float,
    steps: int,
    flow: str = "horizontal",
) -> Float[Tensor, "T d z"]:
    """Return the outputs at steps 0, 1, …, T − 1 of q ← q + η q′, q′ as in `output_vector_field`: Euler's method, at a
    cost without h.

    Singular values of q₀ that are 1, as orthonormal weights of a width h < d + z force them to be, are 1 at every step:
    each step is projected back. Without the projection, Euler's method leaves them along a positive λ, and diverges.

    Raises:
        UserError: a learning rate at or above the `stability_limit` of these outputs, outputs longer than 1, or an
            unknown flow.

    Source: Esser et al. 2023, eq. 12.

    >>> euler_outputs(torch.tensor([[0.5]]), torch.tensor([-1.0]), learning_rate=0.1, steps=1).flatten()
    tensor([0.5000, 0.6500])
    """
    start = _lift(q0)
    forced = len(q0) + q0.shape[1] - len(start)
    limit = stability_limit(eigenvalues, outputs=q0.shape[1], forced=forced, flow=flow)
    if not 0 < learning_rate < limit:
        raise UserError(f"learning rate {learning_rate:g} is not below the stability limit {limit:g}; lower it")
    path = [start if forced else q0]
    for _ in range(steps):
        now = path[-1]
        if forced:
            path.append(polar_factor(now + learning_rate * _lifted_vector_field(now, eigenvalues, flow=flow)))
        else:
            path.append(now + learning_rate * output_vector_field(now, eigenvalues, flow=flow))
    return torch.stack(path)[:, : len(q0)]


def integrate_outputs(
    q0: Float[Tensor, "d z"],
    eigenvalues: Float[Tensor, " d"],
    t: Float[Tensor, " T"],
    *,
    flow: str = "horizontal",
) -> Float[Tensor, "T d z"]:
    """Integrate q′ = `output_vector_field`, q(0) = q₀, with `flow.solve_ode`, and return the outputs at the times t.

    Singular values of q₀ that are 1 stay 1, as the flow has it: along a positive λ a rounding error of them would grow
    at the rate 8λ.

    Raises:
        UserError: outputs longer than 1, which can diverge, or an unknown flow.

    Source: Esser et al. 2023, eq. 9.

    >>> q0 = torch.tensor([[0.6], [0.8]], dtype=torch.float64)
    >>> integrate_outputs(q0, torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.25]).double(), flow="canonical")
    tensor([[[0.9841],
             [0.1776]]], dtype=torch.float64)
    """
    start = _lift(q0)
    if len(start) == len(q0) + q0.shape[1]:  # all singular values are below 1
        return solve_ode(partial(output_vector_field, eigenvalues=eigenvalues, flow=flow), q0, t)

    def velocity(Y: Tensor) -> Tensor:
        return _lifted_vector_field(polar_factor(Y), eigenvalues, flow=flow)

    return polar_factor(solve_ode(velocity, start, t))[:, : len(q0)]


def _lift(q: Float[Tensor, "d z"]) -> Float[Tensor, "r z"]:
    """Return Y = [q; R], r = d + z − k, with orthonormal columns: RᵀR = I − qᵀq, and R has no rows for the k singular
    values 1 of q.
    """
    check_output_length(q)
    squares, V = torch.linalg.eigh(q.mT @ q)
    below = squares < 1 - rounding_tolerance(q.dtype)
    return torch.cat([q, (1 - squares[below]).sqrt()[:, None] * V[:, below].mT])


def _lifted_vector_field(
    Y: Float[Tensor, "r z"], eigenvalues: Float[Tensor, " d"], *, flow: str
) -> Float[Tensor, "r z"]:
    """Return the velocity of Y = [q; R]: q′ = `output_vector_field`, and R′ = 4R qᵀΛq for every flow.

    It keeps YᵀY = I, since I − qᵀq obeys N′ = 4(NM + MN) with M = qᵀΛq; and as R keeps its number of rows, N keeps its
    rank.
    """
    d = len(eigenvalues)
    q, R = Y[:d], Y[d:]
    return torch.cat([output_vector_field(q, eigenvalues, flow=flow), 4 * R @ (q.mT @ (eigenvalues[:, None] * q))])


def embed(X: Float[Tensor, "n d"], q: Float[Tensor, "d z"], V: Float[Tensor, "d d"]) -> Float[Tensor, "n z"]:
    """Return the embeddings u(x) = qᵀVᵀx of points, including new points, from outputs q on the eigenvectors V of C.

    Source: Esser et al. 2023, Sec. "New Datapoint".

    >>> embed(torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0], [0.0]]), torch.eye(2))
    tensor([[2.]])
    """
    return X @ V @ q


def polar_factor(W: Float[Tensor, "*T h d"]) -> Float[Tensor, "*T h d"]:
    """Return the nearest matrix with orthonormal columns, W(WᵀW)^{−½}."""
    U, _, Vh = torch.linalg.svd(W, full_matrices=False)
    return U @ Vh
