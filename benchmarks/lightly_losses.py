"""lightly's losses as functions of Z (V, N, D), with the name of their flag for several processes."""

from lightly.loss import (
    BarlowTwinsLoss,
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
