"""Every objective as its paper prints it, for two views, differentiated by autograd: what a user would write in ten
minutes.

`losses.py` times these formulas against the library, after it has checked that values and gradients are equal. They
take the tensors and the hyperparameters of the objective of the same name, and return the loss. They do not handle
constant columns, or more than two views.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, mse_loss, normalize, relu, softmax

EPSILON = 1e-4  # of VICReg's variance


def simclr(Z: Tensor, *, temperature: float) -> Tensor:
    N = Z.shape[1]
    U = normalize(Z.flatten(0, 1), dim=-1)
    S = U @ U.T / temperature
    S.fill_diagonal_(-torch.inf)
    return cross_entropy(S, torch.arange(2 * N, device=Z.device).roll(N))


def moco(Q: Tensor, K: Tensor, queue: Tensor, *, temperature: float) -> Tensor:
    def info_nce(q: Tensor, k: Tensor) -> Tensor:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
        logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ queue.T], 1) / temperature
        return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))

    (q1, q2), (k1, k2) = Q, K
    return (info_nce(q1, k2) + info_nce(q2, k1)) / 2


def moco_v3(P: Tensor, T: Tensor, *, temperature: float) -> Tensor:
    p, t = normalize(P, dim=-1), normalize(T.detach(), dim=-1)
    labels = torch.arange(p.shape[1], device=P.device)
    return 2 * temperature * sum(cross_entropy(p[v] @ t[1 - v].T / temperature, labels) for v in (0, 1))


def nnclr(P: Tensor, T: Tensor, queue: Tensor, *, temperature: float) -> Tensor:
    p, neighbours = normalize(P, dim=-1), queue[(normalize(T, dim=-1) @ queue.T).argmax(-1)]
    labels = torch.arange(p.shape[1], device=P.device)
    return sum(cross_entropy(neighbours[v] @ p[1 - v].T / temperature, labels) for v in (0, 1)) / 2


def swav(S: Tensor, *, full: int, temperature: float, epsilon: float, iterations: int) -> Tensor:
    def codes(scores: Tensor) -> Tensor:
        Q = torch.exp(scores.detach() / epsilon)
        for _ in range(iterations):
            Q = Q / Q.sum(0, keepdim=True)
            Q = Q / Q.sum(1, keepdim=True)
        return Q

    s1, s2 = S
    pairs = [(s1, s2), (s2, s1)][:full]
    return -sum((codes(s) * log_softmax(t / temperature, -1)).sum(-1).mean() for s, t in pairs) / full


def spectral_contrastive(Z: Tensor) -> Tensor:
    z1, z2 = Z
    N = len(z1)
    S = z1 @ z2.T
    others = S.square().sum() - S.diagonal().square().sum()
    return -2 * (z1 * z2).sum(-1).mean() + others / (N * (N - 1))


def simsiam(P: Tensor, T: Tensor) -> Tensor:
    (p1, p2), (t1, t2) = P, T
    return -(cosine(p1, t2) + cosine(p2, t1)) / 2


def byol(P: Tensor, T: Tensor) -> Tensor:
    def distance(p: Tensor, t: Tensor) -> Tensor:
        return (normalize(p, dim=-1) - normalize(t, dim=-1)).square().sum(-1).mean()

    (p1, p2), (t1, t2) = P, T
    return distance(p1, t2) + distance(p2, t1)


def dino(S: Tensor, T: Tensor, c: Tensor, *, student_temperature: float, teacher_temperature: float) -> Tensor:
    def cross(t: Tensor, s: Tensor) -> Tensor:
        return -(softmax((t - c) / teacher_temperature, -1) * log_softmax(s / student_temperature, -1)).sum(-1).mean()

    (s1, s2), (t1, t2) = S, T
    return (cross(t1, s2) + cross(t2, s1)) / 2


def vicreg(Z: Tensor, *, invariance: float, variance: float, covariance: float) -> Tensor:
    _, N, D = Z.shape
    z1, z2 = Z
    loss = invariance * (z1 - z2).square().mean()
    for z in (z1, z2):
        z = z - z.mean(0)
        std = (z.var(0) + EPSILON).sqrt()
        C = z.T @ z / (N - 1)
        loss = loss + variance * torch.relu(1 - std).mean() / 2 + covariance * off_diagonal(C).square().sum() / D
    return loss


def vibcreg(Z: Tensor, *, invariance: float, variance: float, covariance: float) -> Tensor:
    loss = invariance * mse_loss(Z[0], Z[1])
    for z in Z:
        std = (z.var(0) + EPSILON).sqrt()
        M = off_diagonal(torch.corrcoef(z.T))
        loss = loss + variance * relu(1 - std).mean() / 2 + covariance * M.square().sum() / Z.shape[2] ** 2
    return loss


def barlow_twins(Z: Tensor, *, redundancy: float, scale: float) -> Tensor:
    z1, z2 = ((z - z.mean(0)) / z.std(0, correction=0) for z in Z)
    C = z1.T @ z2 / len(z1)
    return scale * ((C.diagonal() - 1).square().sum() + redundancy * off_diagonal(C).square().sum())


def wmse(Z: Tensor, *, slice_size: int | None, epsilon: float, whitening: str) -> Tensor:
    def whitened(z: Tensor) -> Tensor:
        z = z - z.mean(0)
        identity = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        L = torch.linalg.cholesky((1 - epsilon) * z.T @ z / (len(z) - 1) + epsilon * identity)
        return z @ torch.linalg.solve_triangular(L, identity, upper=False).T

    slices = Z.split(slice_size or Z.shape[1], dim=1)
    return sum(2 - 2 * cosine(whitened(a), whitened(b)) for a, b in slices) / len(slices)


def corinfomax(Z: Tensor, R: Tensor, mu: Tensor, *, invariance: float, epsilon: float, forgetting: float) -> Tensor:
    _, N, D = Z.shape
    z1, z2 = Z
    loss = invariance * (z1 - z2).square().mean()
    for z, r, m in zip((z1, z2), R, mu, strict=True):
        A = z - (forgetting * m + (1 - forgetting) * z.mean(0))
        C = forgetting * r + (1 - forgetting) * A.T @ A / N
        loss = loss - torch.logdet(C + epsilon * torch.eye(D, dtype=z.dtype, device=z.device)) / D
    return loss


def corinfomax_batch(Z: Tensor, *, invariance: float, epsilon: float) -> Tensor:
    _, N, D = Z.shape
    ridge = epsilon * torch.eye(D, dtype=Z.dtype, device=Z.device)
    z1, z2 = Z
    return invariance * (z1 - z2).square().sum() / N - sum(torch.logdet(z.T @ z + ridge) for z in (z1, z2))


def frossl(Z: Tensor, *, invariance: float, variance: float, log: bool, center: bool, normalize: str) -> Tensor:
    _, N, D = Z.shape
    A = [z - z.mean(0) for z in Z]
    A = [z / z.norm(dim=0) for z in A]
    C = [z.T @ z if D <= N else z @ z.T for z in A]
    return variance * sum(c.square().sum().log() for c in C) + invariance * (A[0] - A[1]).square().sum() / N


def tico(Z: Tensor, T: Tensor, C: Tensor, *, covariance: float, forgetting: float) -> Tensor:
    z = normalize(Z.flatten(0, 1), dim=-1)
    C = forgetting * C + (1 - forgetting) * z.T @ z / len(z)
    (z1, z2), (t1, t2) = z.view_as(Z), T
    return 1 - (cosine(z1, t2) + cosine(z2, t1)) / 2 + covariance * (z @ C * z).sum(-1).mean()


def ssl_hsic(Z: Tensor, *, regularization: float, kernel_scale: float) -> Tensor:
    z = normalize(Z.flatten(0, 1), dim=-1)
    n = len(z)
    K = kernel_scale / (kernel_scale**2 + (2 - 2 * z @ z.T)).sqrt()
    HKH = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    positives = K.diagonal(Z.shape[1]).mean()
    return K.mean() - positives + regularization * HKH.norm() / n


def ssl_hsic_teacher(P: Tensor, T: Tensor, *, regularization: float, kernel_scale: float) -> Tensor:
    z = normalize(torch.cat([P.flatten(0, 1), T.detach().flatten(0, 1)]), dim=-1)
    n = len(z)
    K = kernel_scale / (kernel_scale**2 + (2 - 2 * z @ z.T)).sqrt()
    HKH = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    same = torch.arange(n, device=z.device) % P.shape[1]
    positives = (K * (same[:, None] == same)).sum() - K.diagonal().sum()
    return K.mean() - positives / (3 * n) + regularization * HKH.norm() / n


def ivne(Z: Tensor, *, alignment: float, entropy: float, full: int) -> Tensor:
    _, N, D = Z.shape
    z = normalize(Z, dim=-1)
    C = (z.mT @ z if D <= N else z @ z.mT) / N
    eigenvalues = torch.linalg.eigvalsh(C).clamp_min(torch.finfo(Z.dtype).tiny)
    z1, z2 = z
    return -alignment * (z1 * z2).sum(-1).mean() + entropy * (eigenvalues * eigenvalues.log()).sum(-1).mean()


def simmer(Z: Tensor, *, invariance: float, entropy: float) -> Tensor:
    z1, z2 = normalize(Z, dim=-1)
    far = 4 * torch.eye(len(z1), dtype=Z.dtype, device=Z.device)  # more than any distance on the sphere
    distances = [(torch.cdist(z, z) + far).min(-1).values for z in (z1, z2)]
    return invariance * (z1 - z2).square().sum(-1).mean() - entropy * sum(d.log().mean() for d in distances) / 2


def lejepa(Z: Tensor, *, trade_off: float, slices: int, flatten: bool) -> Tensor:
    A = normalize(torch.randn(Z.shape[-1], slices, dtype=torch.float64), dim=0).to(Z)
    t = torch.linspace(0, 3, 17, dtype=torch.float64).to(Z)
    samples = [torch.cat([*Z])] if flatten else [*Z]
    angles = [(z @ A)[..., None] * t for z in samples]
    target = (-(t**2) / 2).exp()
    errors = [((a.cos().mean(0) - target) ** 2 + a.sin().mean(0) ** 2) * target for a in angles]
    statistic = sum(2 * len(a) * torch.trapezoid(e, t, dim=-1).mean() for a, e in zip(angles, errors, strict=True))
    return (1 - trade_off) * (Z - Z.mean(0)).square().mean() + trade_off * statistic / len(samples)


def visreg(Z: Tensor, *, trade_off: float, shape: float, slices: int, full: int | None) -> Tensor:
    A = normalize(torch.randn(Z.shape[-1], slices, dtype=torch.float64), dim=0).to(Z)
    N, std = Z.shape[1], Z.std(1, unbiased=False, keepdim=True)
    X = ((Z - Z.mean(1, keepdim=True)) / (std.detach() + 1e-4)) @ A
    q = torch.special.ndtri(torch.arange(1, N + 1, dtype=Z.dtype, device=Z.device) / (N + 1))
    normality = Z.mean(1).square().mean() + (1 - std).square().mean() + shape * (X.sort(1)[0].mT - q).square().mean()
    return (1 - trade_off) * (Z - Z[:full].mean(0)).square().mean() + trade_off * normality


def rdmreg(Z: Tensor, *, invariance: float, distribution: float, shift: float, p: int, slices: int) -> Tensor:
    A = normalize(torch.randn(Z.shape[-1], slices, dtype=torch.float64), dim=0).to(Z)
    target = torch.distributions.Laplace(torch.tensor(shift, dtype=torch.float64), 0.5**0.5)  # p = 1
    Y, T = relu(Z), relu(target.icdf(torch.rand(Z.shape, dtype=torch.float64))).to(Z)
    distances = ((Y @ A).sort(1)[0] - (T @ A).sort(1)[0]).square()
    return invariance * mse_loss(Y[0], Y[1]) + distribution * distances.mean()


def mmcr(Z: Tensor, *, nuclear_norm: float) -> Tensor:
    _, N, D = Z.shape
    C = normalize(Z, dim=-1).mean(0)
    return -nuclear_norm * torch.linalg.matrix_norm(C, ord="nuc") / (N * min(N, D)) ** 0.5


def emp_ssl(Z: Tensor, *, invariance: float, epsilon: float) -> Tensor:
    _, N, D = Z.shape
    Z = normalize(Z, dim=-1)
    rates = [torch.logdet(torch.eye(D).to(Z) + D / (N * epsilon) * z.T @ z) / 2 for z in Z]
    return invariance * (1 - cosine_similarity(Z, Z.mean(0)[None], dim=-1)).mean() - sum(rates) / len(rates)


def directclr(R: Tensor, *, d0: int, temperature: float) -> Tensor:
    u1, u2 = normalize(R[..., :d0], dim=-1)
    S = u1 @ u2.T / temperature
    labels = torch.arange(len(S), device=R.device)
    return (cross_entropy(S, labels) + cross_entropy(S.T, labels)) / 2


def directclr_paper(R: Tensor, *, d0: int) -> Tensor:
    u1, u2 = normalize(R[..., :d0], dim=-1)
    positives = (u1 * u2).sum(-1)
    negatives = (u1 @ u1.T).fill_diagonal_(-torch.inf)
    return -(positives - torch.cat([positives[:, None], negatives], 1).logsumexp(-1)).sum()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean cosine of the rows."""
    return (normalize(a, dim=-1) * normalize(b, dim=-1)).sum(-1).mean()


def off_diagonal(C: Tensor) -> Tensor:
    """Return the elements off the diagonal, in one row."""
    D = len(C)
    return C.flatten()[:-1].view(D - 1, D + 1)[:, 1:].flatten()
