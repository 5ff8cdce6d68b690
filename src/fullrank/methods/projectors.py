"""Projectors: the networks between the representation r, which is used downstream, and the embedding z, which the
objective takes.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.distributed import all_reduce_sum
from fullrank.errors import UserError
from fullrank.methods.config import ProjectorConfig
from fullrank.methods.directclr_projectors import (
    Diagonal,
    RandomDropout,
    SubVector,
    fixed_linear,
    orthogonal_linear,
    random_low_rank_matrix,
)
from fullrank.methods.method import at_least_float32

# Newton steps of `IterNorm`, as in VIbCReg.
STEPS = 5


def build_projector(config: ProjectorConfig, features: int, *, seed: int = 0) -> nn.Sequential:
    """Build the projector: representations (n, `features`) to embeddings (n, D), with D =
    `config.dimensions(features)`.

    Fixed random matrices are drawn like weights, from torch's global generator, and are saved with them.

    Args:
        config: the configuration of the projector.
        features: dimension D_b of the representation.
        seed: seed of the dimensions that 'dropout' selects in each step.

    Raises:
        UserError: d0 is more than D_b, or less than 1; the groups of `output_iternorm` do not divide D.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Table 2 and
    Appendix F.

    >>> [type(layer).__name__ for layer in build_projector(ProjectorConfig(widths=(64, 16)), features=32)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    >>> build_projector(ProjectorConfig(kind="sub-vector", d0=2), features=4)(torch.arange(4.0)[None])
    tensor([[0., 1.]])
    """
    D_b, d0 = features, config.d0
    if config.kind in ("low-rank", "low-rank-diagonal", "sub-vector", "dropout") and not 1 <= d0 <= D_b:
        remedy = f"choose 1 to {D_b}, for example projector.d0 = {max(D_b // 4, 1)}"
        raise UserError(f"projector.d0 is {d0}, but representations have {D_b} dimensions; {remedy}")
    build: dict[str, Callable[[], Iterable[nn.Module]]] = {
        "mlp": lambda: _mlp_layers(config, (D_b, *config.widths)),
        "diagonal": lambda: [Diagonal(torch.ones(D_b), trained=True)],
        "orthogonal": lambda: [orthogonal_linear(D_b)],
        "low-rank": lambda: [fixed_linear(random_low_rank_matrix(d0, D_b))],
        "low-rank-diagonal": lambda: [Diagonal((torch.arange(D_b) < d0).to(torch.get_default_dtype()))],
        "sub-vector": lambda: [SubVector(d0)],
        "dropout": lambda: [RandomDropout(D_b, d0, seed=seed)],
        "groups": lambda: [],
    }
    return nn.Sequential(*build[config.kind]())


def _mlp_layers(config: ProjectorConfig, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = layer == len(widths) - 1
        norm, groups = (config.output_batchnorm, config.output_iternorm) if last else (config.batchnorm, 0)
        yield nn.Linear(inputs, outputs, bias=config.bias and not (norm or groups))  # a norm subtracts it
        if norm:
            yield nn.BatchNorm1d(outputs, affine=config.output_affine or not last)
        if groups:
            yield IterNorm(outputs, groups, affine=config.output_affine)
        if not last:
            yield nn.GELU() if config.activation == "gelu" else nn.ReLU(inplace=True)


class IterNorm(nn.Module):
    """Iterative normalisation: whitens groups of dimensions over the whole batch of all processes, approximately.

    For each group of d = D/groups dimensions, with the mean and the covariance C (divided by N, plus 10⁻⁵ I) of its N
    samples (N, d), the output is (Z − mean) C^(−1/2), times a trained scale plus a trained shift if `affine`. Five
    Newton steps give the root (`iterated_root`). In eval mode, the running mean and the running mean of these roots
    take the place of those of the batch. The processes may have different numbers of samples.

    Args:
        dimensions: D.
        groups: number of groups of consecutive dimensions, a divisor of D.
        affine: whether there is a scale and a shift.

    Raises:
        UserError: `groups` does not divide D.

    Source: Huang et al. 2019, Iterative Normalization: Beyond Standardization towards Efficient Whitening, Algorithm 1;
    after the projector in Lee and Aune 2021, VIbCReg, with 64 groups.

    >>> Z = torch.randn(1000, 2) @ torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    >>> (IterNorm(2, 1)(Z).T.cov() - torch.eye(2)).abs().max() < 0.1
    tensor(True)
    """

    momentum, eps = 0.1, 1e-5  # those of BatchNorm

    def __init__(self, dimensions: int, groups: int, *, affine: bool = True) -> None:
        super().__init__()
        if groups < 1 or dimensions % groups:
            divides = max(g for g in range(1, max(groups, 2)) if dimensions % g == 0)
            remedy = f"choose a divisor, for example projector.output_iternorm = {divides}"
            raise UserError(
                f"projector.output_iternorm is {groups}, but embeddings have {dimensions} dimensions; {remedy}"
            )
        self.weight = nn.Parameter(torch.ones(dimensions)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dimensions)) if affine else None
        self.running_mean = nn.Buffer(torch.zeros(dimensions))
        self.running_root = nn.Buffer(torch.eye(dimensions // groups).repeat(groups, 1, 1))

    def forward(self, input: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """Whiten each group of dimensions."""
        groups, d, _ = self.running_root.shape

        def centred(mean: Tensor) -> Float[Tensor, "G n d"]:
            return (Z - mean).unflatten(1, (groups, d)).transpose(0, 1)

        with torch.autocast(input.device.type, enabled=False):
            Z = at_least_float32(input)
            if self.training:
                total = all_reduce_sum(torch.cat([Z.sum(0), Z.new_full((1,), len(Z))]))
                mean, n = total[:-1] / total[-1], total[-1]
                A = centred(mean)
                root = iterated_root(all_reduce_sum(A.mT @ A) / n + self.eps * torch.eye(d).to(A))
                for running, new in ((self.running_mean, mean), (self.running_root, root)):
                    running.lerp_(new.detach().to(running), self.momentum)
            else:
                A, root = centred(self.running_mean), self.running_root.to(Z)
            white = (A @ root).transpose(0, 1).flatten(1)
            white = white if self.weight is None or self.bias is None else white * self.weight + self.bias
            return white.to(input.dtype)


def iterated_root(C: Float[Tensor, "*G d d"], steps: int = STEPS) -> Float[Tensor, "*G d d"]:
    """Return an approximation of C^(−1/2) of positive definite matrices: with t the trace of C, P_0 = I and

        P_k = (3 P_{k−1} − P_{k−1}³ C/t) / 2

    after some steps, divided by √t. Each step brings the large eigenvalues of P² C/t close to 1, and multiplies the
    small ones by 2.25.

    Source: Huang et al. 2019, Algorithm 1.

    >>> iterated_root(torch.tensor([[4.0]]))
    tensor([[0.5000]])
    """
    t = C.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    P = torch.eye(C.shape[-1]).to(C)
    for _ in range(steps):
        P = 1.5 * P - 0.5 * (P @ P @ P @ C / t)
    return P / t.sqrt()
