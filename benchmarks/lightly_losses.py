"""lightly's losses as functions of Z (V, N, D), with the name of their flag for several processes."""

from lightly.loss import (
    BarlowTwinsLoss,
    DINOLoss,
    DirectCLRLoss,
    EMPSSLLoss,
    FroSSLLoss,
    KoLeoLoss,
    MMCRLoss,
    NegativeCosineSimilarity,
    NTXentLoss,
    SwaVLoss,
    TiCoLoss,
    VICRegLoss,
    WMSELoss,
)


def ntxent(Z):
    return {"loss": NTXentLoss(gather_distributed=True)(Z[0], Z[1])}


def barlow_twins(Z):
    return {"loss": BarlowTwinsLoss(gather_distributed=True)(Z[0], Z[1])}


def vicreg(Z):
    return {"loss": VICRegLoss(gather_distributed=True)(Z[0], Z[1])}


def tico(Z):
    return {"loss": TiCoLoss(gather_distributed=True)(Z[0], Z[1].detach())}


def direct_clr(Z):
    return {"loss": DirectCLRLoss(loss_dim=3, gather_distributed=True)(Z[0], Z[1])}


def swav(Z):
    return {"loss": SwaVLoss(sinkhorn_gather_distributed=True)([Z[0], Z[1]], [])}


def negative_cosine(Z):
    return {"loss": NegativeCosineSimilarity()(Z[0], Z[1].detach())}


def frossl(Z):
    return {"loss": FroSSLLoss()(list(Z))}


def wmse(Z):
    # The default running statistics are float32. One slice contains all samples of a process.
    loss = WMSELoss(embedding_dim=Z.shape[-1], w_size=Z.shape[1], track_running_stats=False).to(Z.dtype)
    return {"loss": loss(Z.flatten(0, 1))}


def mmcr(Z):
    return {"loss": MMCRLoss()(Z[:1].transpose(0, 1), Z[1:].transpose(0, 1))}


def emp_ssl(Z):
    return {"loss": EMPSSLLoss()(list(Z))}


def koleo(Z):
    return {"loss": KoLeoLoss()(Z[0])}


LOSSES = {
    "NTXentLoss": (ntxent, "gather_distributed"),
    "BarlowTwinsLoss": (barlow_twins, "gather_distributed"),
    "VICRegLoss": (vicreg, "gather_distributed"),
    "TiCoLoss": (tico, "gather_distributed"),
    "DirectCLRLoss": (direct_clr, "gather_distributed"),
    "SwaVLoss": (swav, "sinkhorn_gather_distributed"),
    "NegativeCosineSimilarity": (negative_cosine, "none needed"),
    "FroSSLLoss": (frossl, "none"),
    "WMSELoss": (wmse, "none"),
    "MMCRLoss": (mmcr, "none"),
    "EMPSSLLoss": (emp_ssl, "none"),
    "KoLeoLoss": (koleo, "none"),
}
"""(function, flag for several processes) by name of the class."""


def counterpart(name: str, tensors: dict, hyper: dict):
    """Return lightly's version of an objective as a function of its tensors, with the same hyperparameters; None if
    lightly has none.

    The module is built once, because it keeps a queue, a centre or a covariance between calls.
    """
    N, D = next(iter(tensors.values())).shape[-2:]
    device = next(iter(tensors.values())).device
    match name:
        case "simclr":
            return pair(NTXentLoss(temperature=hyper["temperature"]))
        case "directclr":
            return pair(DirectCLRLoss(hyper["d0"], temperature=hyper["temperature"]))
        case "barlow_twins":
            return pair(BarlowTwinsLoss(hyper["redundancy"]))
        case "vicreg":
            return pair(VICRegLoss(hyper["invariance"], hyper["variance"], hyper["covariance"]))
        case "frossl":
            loss = FroSSLLoss(hyper["invariance"])
            return lambda Z: loss(list(Z))
        case "wmse" if 2 * D <= N:
            loss = WMSELoss(D, eps=hyper["epsilon"], w_size=hyper["slice_size"] or N, track_running_stats=False)
            return lambda Z: loss(Z.flatten(0, 1))
        case "swav":
            loss = SwaVLoss(
                hyper["temperature"], sinkhorn_iterations=hyper["iterations"], sinkhorn_epsilon=hyper["epsilon"]
            )
            return lambda S: loss(list(S), [])
        case "dino":
            loss = DINOLoss(D, teacher_temp=hyper["teacher_temperature"], student_temp=hyper["student_temperature"]).to(
                device
            )
            return lambda S, T, c: loss(list(T), list(S))
        case "simsiam" | "byol":
            return both_directions(NegativeCosineSimilarity())
        case "tico":
            return both_directions(TiCoLoss(hyper["forgetting"], hyper["covariance"]).to(device))
        case "moco":
            loss = NTXentLoss(temperature=hyper["temperature"], memory_bank_size=(len(tensors["queue"]), D))
            loss.memory_bank.bank = tensors["queue"].clone()
            return both_directions(loss)
    return None


def pair(loss):
    """Return a loss of two views as a function of both views in one tensor, whatever its name."""
    return lambda **tensors: loss(*next(iter(tensors.values())))


def both_directions(loss):
    """Return the mean of a loss of a student's view and the other view of the teacher; further tensors, a state, are
    lightly's own."""

    def mean(**tensors):
        (s1, s2), (t1, t2), *_ = tensors.values()
        return (loss(s1, t2) + loss(s2, t1)) / 2

    return mean
