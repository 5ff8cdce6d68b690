"""The computations that must not depend on the number of processes, on one process or on each of several.

The processes have different data: the second half of each batch has another mean and scale.
"""

import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fullrank import distributed
from fullrank.errors import UserError
from fullrank.images import DecodeErrors, ImageDecodeError
from fullrank.spectrum import Moments

UNEVEN = (3, 7)
"""The number of samples of each of two processes, of a batch of ten."""


def data(*shape, dim):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=rng, dtype=torch.float64)
    first, second = x.tensor_split(2, dim)
    return torch.cat([first, 3 * second + 2], dim)


def local_part(x, sizes=UNEVEN):
    """Return the part of a batch of ten that belongs to this process."""
    return x.split(sizes)[distributed.rank()] if distributed.world_size() > 1 else x


def distribute(net):
    """Return a module for distributed training: equal parameters, synchronised BatchNorm, averaged gradients."""
    rng = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    net = distributed.convert_sync_batchnorm(net.double())
    return DistributedDataParallel(net) if distributed.world_size() > 1 else net


def normalisation(layer, x, *, steps=2, sizes=UNEVEN):
    """Return outputs, gradients and running statistics of a BatchNorm on uneven parts of a batch, and its outputs in
    eval mode."""
    layer = distributed.convert_sync_batchnorm(layer.double())
    x = local_part(x, sizes).requires_grad_()
    for _ in range(steps):
        y = layer(x)
    grads = torch.autograd.grad((y.sin() * y.detach().cos()).sum(), [x, *layer.parameters()])
    return {
        "shards": [y.detach(), grads[0]],
        "sums": list(grads[1:]),
        "same": [buffer.clone() for buffer in layer.buffers()],
        "eval": [layer.eval()(x).detach()],
    }


def layers():
    relu = BatchNormAct2d(3, act_layer=nn.SiLU)
    nn.init.uniform_(relu.weight, generator=torch.Generator().manual_seed(2))
    flat, image, volume = data(10, 4, dim=0), data(10, 3, 4, 5, dim=0), data(10, 3, 2, 2, 2, dim=0)
    return {
        "1d": normalisation(nn.BatchNorm1d(4), flat),
        "2d": normalisation(nn.BatchNorm2d(3), image),
        "3d": normalisation(nn.BatchNorm3d(3), volume),
        "timm's with activation": normalisation(relu, image),
        "average of all batches": normalisation(nn.BatchNorm1d(4, momentum=None), flat),
        "one process without samples": normalisation(nn.BatchNorm1d(4), flat, sizes=(10, 0)),
        "not affine": normalisation(nn.BatchNorm1d(4, affine=False), flat),
        "no running statistics": normalisation(nn.BatchNorm1d(4, track_running_stats=False), flat, steps=1),
    }


def backbone():
    """Return gradients of a small timm network; each of its BatchNorm layers includes an activation."""
    net = distribute(timm.create_model("test_efficientnet", num_classes=0))
    Z = net(data(4, 3, 32, 32, dim=0)[distributed.rank_slice(4)])
    distributed.gather(Z).square().sum().backward()
    return [p.grad for p in net.parameters()]


def indivisible_batch_error():
    try:
        distributed.rank_slice(13)
    except UserError as error:
        return str(error)


def unequal_shapes_errors():
    """Return the messages for shares of different sizes and for different numbers of axes."""
    messages = []
    for Z in (torch.ones(2, 3 + distributed.rank(), 4), torch.ones((2,) * (2 + distributed.rank()))):
        try:
            distributed.gather(Z)
        except UserError as error:
            messages.append(str(error))
    distributed.require_equal_shapes(torch.ones(3), torch.ones(2, 5))
    return messages


def exchange_decode_errors():
    """Return the decode errors of all processes after the exchange."""
    decode_errors = DecodeErrors()
    own = ImageDecodeError(f"{distributed.rank()}.jpg", "no image")
    decode_errors.add(10, [ImageDecodeError("both.jpg", "empty file"), own])
    decode_errors.all_gather()
    return decode_errors.attempts, decode_errors.failed, decode_errors.reasons


def main(fabric=None):
    moments = Moments.from_embeddings(local_part(data(10, 4, dim=0))).all_reduce()
    numbers, rank = torch.arange(24.0).view(2, 4, 3), distributed.rank()
    return {
        "layers": layers(),
        "backbone": backbone(),
        "moments": (moments.n, moments.mean, moments.scatter),
        "gather": [
            distributed.gather(numbers[:, distributed.rank_slice(4)]),
            distributed.gather(numbers[0, distributed.rank_slice(4)]),
            distributed.gather(numbers[:, distributed.rank_slice(4)].long()),
        ],
        "unequal shapes": unequal_shapes_errors(),
        "error": indivisible_batch_error(),
        "all_gather_object": distributed.all_gather_object({"rank": distributed.rank()}),
        "all_reduce_max": [distributed.all_reduce_max(signum) for signum in (0, 15 * rank, 2 * (1 - rank))],
        "decode_errors": exchange_decode_errors(),
    }
