"""The online probe: a linear classifier that is trained during pretraining, without a gradient to the backbone."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from fullrank.evaluation.outcomes import MANY_CLASSES, accuracy


@dataclass(frozen=True)
class OnlineScore:
    """Accuracies of the online probe on labelled images.

    Attributes:
        top5: Share of the images whose class is among the five largest logits; None with at most ten classes.
    """

    accuracy: float
    top5: float | None
    images: int

    @classmethod
    def of(cls, logits: Float[Tensor, "n K"], labels: Int64[Tensor, " n"]) -> "OnlineScore":
        """Return the accuracies of logits; labels are −1 for images without one."""
        images = int((labels >= 0).sum())
        assert images, "no feature has a label"
        top5 = accuracy(logits, labels, top=5) if logits.shape[1] > MANY_CLASSES else None
        return cls(accuracy(logits, labels), top5, images)


class OnlineProbe(nn.Module):
    """A linear classifier of detached features, with a separate SGD; it measures the quality of the backbone during
    training.

    Running statistics (BatchNorm without parameters) standardise the features, so their scale does not matter. `step`
    minimises the loss of the probe, which is not a term of the objective; the results of `step` have no gradient.

    `state_dict` holds the classifier, the statistics and the momentum, so a resumed probe gives bitwise equal results.
    The classifier starts at zero and draws no random numbers, so the probe does not change the run. No step waits for
    the device.

    Args:
        features: number of dimensions D of the backbone's output.
        classes: number of classes.
        lr: learning rate of SGD.
        momentum: momentum of SGD.
        weight_decay: weight decay λ of the weights, not of the biases.
        standardize: standardise the features; without it, they are used as they are.

    >>> probe = OnlineProbe(2, 2, lr=0.01)
    >>> X, labels = torch.tensor([[0.0, 1], [0, -1], [3, 3]], requires_grad=True), torch.tensor([0, 1, -1])
    >>> {name: round(value.item(), 4) for name, value in probe.step(X, labels).items()}
    {'loss': 0.6931, 'accuracy': 0.5}
    >>> X.grad is None, probe.accuracy(X, labels)
    (True, 1.0)
    """

    W_velocity: Tensor
    b_velocity: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        standardize: bool = True,
    ) -> None:
        super().__init__()
        # a small eps, because features of tiny scale may be separable
        self.norm = nn.BatchNorm1d(features, affine=False, eps=1e-8) if standardize else nn.Identity()
        self.W = nn.Parameter(torch.zeros(classes, features))
        self.b = nn.Parameter(torch.zeros(classes))
        self.register_buffer("W_velocity", torch.zeros_like(self.W))
        self.register_buffer("b_velocity", torch.zeros_like(self.b))
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def forward(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        """Return the logits of the K classes; no gradient reaches the features."""
        return linear(self.norm(features.detach().to(self.W.dtype)), self.W, self.b)

    def step(
        self, features: Float[Tensor, "n D"], labels: Int64[Tensor, " n"], *, lr_factor: float = 1.0
    ) -> dict[str, Tensor]:
        """Take one SGD step on the labelled features; without any label, change nothing.

            v ← μ v + ∂L/∂w + λ w    w ← w − γ v

        Args:
            features: output of the backbone, with or without gradient.
            labels: class indices, -1 for none.
            lr_factor: factor of the learning rate in this step.

        Returns:
            The mean "loss" and "accuracy" of the labelled features before the step, as tensors: `.item()` waits for the
            device. Loss and accuracy are NaN if no feature has a label.
        """
        labelled = labels >= 0
        any_labelled = labelled.any()  # an `if` would wait for the device
        before = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        self.train()
        with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):  # for the backward pass too
            logits = self(features)  # the statistics include unlabelled features
            # logits[labelled] would wait for the device
            loss = cross_entropy(logits, labels.where(labelled, -1), ignore_index=-1)
            gradients = torch.autograd.grad(loss, (self.W, self.b))
        with torch.no_grad():
            gradients[0].add_(self.W, alpha=self.weight_decay)
            velocities = (self.W_velocity, self.b_velocity)
            for weight, v, gradient in zip((self.W, self.b), velocities, gradients, strict=True):
                weight.add_(v.mul_(self.momentum).add_(gradient), alpha=-self.lr * lr_factor)
        for name, tensor in self.state_dict().items():
            tensor.copy_(tensor.where(any_labelled, before[name]))
        return {"loss": loss.detach(), "accuracy": ((logits.argmax(1) == labels) & labelled).sum() / labelled.sum()}

    @torch.no_grad()
    def score(self, batches: Iterable[tuple[Float[Tensor, "n D"], Int64[Tensor, " n"]]]) -> OnlineScore:
        """Return the accuracies on the labelled features of all batches, with the running statistics.

        Args:
            batches: features (n, D) and labels (n,), −1 for none.
        """
        self.eval()
        found = []
        for features, labels in batches:
            with torch.autocast(features.device.type, enabled=False):
                found.append((self(features).cpu(), labels.cpu()))
        return OnlineScore.of(*map(torch.cat, zip(*found, strict=True)))

    def accuracy(self, features: Float[Tensor, "n D"], labels: Int64[Tensor, " n"]) -> float:
        """Return the share of the labelled features that are classified correctly, with the running statistics."""
        return self.score([(features, labels)]).accuracy
