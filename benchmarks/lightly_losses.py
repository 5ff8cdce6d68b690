"""lightly's losses as functions of Z (V, N, D), with the name of their flag for several processes."""

from functools import partial

from lightly import loss as lightly


def wmse(Z):
    # The default running statistics are float32. One slice contains all samples of a process.
    loss = lightly.WMSELoss(embedding_dim=Z.shape[-1], w_size=Z.shape[1], track_running_stats=False).to(Z.dtype)
    return loss(Z.flatten(0, 1))


FLAG = {"gather_distributed": True}
CLASSES = {
    "NTXentLoss": (lambda Z: lightly.NTXentLoss(**FLAG)(*Z), "gather_distributed"),
    "BarlowTwinsLoss": (lambda Z: lightly.BarlowTwinsLoss(**FLAG)(*Z), "gather_distributed"),
    "VICRegLoss": (lambda Z: lightly.VICRegLoss(**FLAG)(*Z), "gather_distributed"),
    "TiCoLoss": (lambda Z: lightly.TiCoLoss(**FLAG)(Z[0], Z[1].detach()), "gather_distributed"),
    "DirectCLRLoss": (lambda Z: lightly.DirectCLRLoss(loss_dim=3, **FLAG)(*Z), "gather_distributed"),
    "SwaVLoss": (
        lambda Z: lightly.SwaVLoss(sinkhorn_gather_distributed=True)(list(Z), []),
        "sinkhorn_gather_distributed",
    ),
    "NegativeCosineSimilarity": (lambda Z: lightly.NegativeCosineSimilarity()(Z[0], Z[1].detach()), "none needed"),
    "FroSSLLoss": (lambda Z: lightly.FroSSLLoss()(list(Z)), "none"),
    "WMSELoss": (wmse, "none"),
    "MMCRLoss": (lambda Z: lightly.MMCRLoss()(Z[:1].transpose(0, 1), Z[1:].transpose(0, 1)), "none"),
    "EMPSSLLoss": (lambda Z: lightly.EMPSSLLoss()(list(Z)), "none"),
    "KoLeoLoss": (lambda Z: lightly.KoLeoLoss()(Z[0]), "none"),
}
"""Name of the class → (function of Z (V, N, D), flag for several processes)."""


def terms(Z, *, name: str):
    return {"loss": CLASSES[name][0](Z)}


LOSSES = {name: (partial(terms, name=name), flag) for name, (_, flag) in CLASSES.items()}
"""The same with terms, as functions that other processes can import."""


def counterpart(name: str, tensors: dict, hyper: dict):
    """Return lightly's version of an objective as a function of its tensors, with the same hyperparameters; None if
    lightly has none.

    The module is built once, because it keeps a queue, a centre or a covariance between calls.
    """
    first = next(iter(tensors.values()))
    (N, D), device = first.shape[-2:], first.device
    match name:
        case "simclr":
            return pair(lightly.NTXentLoss(temperature=hyper["temperature"]))
        case "directclr":
            return pair(lightly.DirectCLRLoss(hyper["d0"], temperature=hyper["temperature"]))
        case "barlow_twins":
            return pair(lightly.BarlowTwinsLoss(hyper["redundancy"]))
        case "vicreg":
            return pair(lightly.VICRegLoss(hyper["invariance"], hyper["variance"], hyper["covariance"]))
        case "frossl":
            loss = lightly.FroSSLLoss(hyper["invariance"])
            return lambda Z: loss(list(Z))
        case "wmse" if 2 * D <= N:
            loss = lightly.WMSELoss(D, eps=hyper["epsilon"], w_size=hyper["slice_size"] or N, track_running_stats=False)
            return lambda Z: loss(Z.flatten(0, 1))
        case "swav":
            loss = lightly.SwaVLoss(
                hyper["temperature"], sinkhorn_iterations=hyper["iterations"], sinkhorn_epsilon=hyper["epsilon"]
            )
            return lambda S: loss(list(S), [])
        case "dino":
            loss = lightly.DINOLoss(
                D, teacher_temp=hyper["teacher_temperature"], student_temp=hyper["student_temperature"]
            ).to(device)
            return lambda S, T, c: loss(list(T), list(S))
        case "simsiam" | "byol":
            return both_directions(lightly.NegativeCosineSimilarity())
        case "tico":
            return both_directions(lightly.TiCoLoss(hyper["forgetting"], hyper["covariance"]).to(device))
        case "moco":
            loss = lightly.NTXentLoss(temperature=hyper["temperature"], memory_bank_size=(len(tensors["queue"]), D))
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
