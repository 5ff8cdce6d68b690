"""A linear probe that learns beside the backbone, and never through it."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear


class OnlineProbe(nn.Module):
    """Linear classifier of detached features, trained by SGD of its own: how good the backbone is, while it trains.

    Features are standardised by running statistics (BatchNorm without parameters), so that the probe does not care about their scale.
    Its loss is minimised here and is no term of the objective: `step` hands nothing back that has a gradient.

    `state_dict` holds the classifier, the statistics and the momentum, so that a resumed probe goes on bit for bit. The classifier
    starts at zero and draws no random number: a run with a probe is the run without it. No step waits for the device.

    Args:
        features: dimensions D of the backbone's output.
        classes: how many.
        lr: learning rate of SGD.
        momentum: of SGD.

    >>> probe = OnlineProbe(2, 2, lr=0.01)
    >>> X, labels = torch.tensor([[0.0, 1], [0, -1], [3, 3]], requires_grad=True), torch.tensor([0, 1, -1])
    >>> {name: round(value.item(), 4) for name, value in probe.step(X, labels).items()}
    {'loss': 0.6931, 'accuracy': 0.5}
    >>> X.grad is None, probe.accuracy(X, labels)
    (True, 1.0)
    """

    W_velocity: Tensor
    b_velocity: Tensor

    def __init__(self, features: int, classes: int, *, lr: float, momentum: float = 0.9) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, affine=False, eps=1e-8)  # a sick backbone has small features that are no less separable
        self.W = nn.Parameter(torch.zeros(classes, features))
        self.b = nn.Parameter(torch.zeros(classes))
        self.register_buffer("W_velocity", torch.zeros_like(self.W))
        self.register_buffer("b_velocity", torch.zeros_like(self.b))
        self.lr, self.momentum = lr, momentum

    def forward(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        """Return the logits of the classes; no gradient reaches the features."""
        return linear(self.norm(features.detach().to(self.W.dtype)), self.W, self.b)

    def step(self, features: Float[Tensor, "n D"], labels: Int64[Tensor, " n"]) -> dict[str, Tensor]:
        """Take one step on the labelled features; without any, change nothing.

            v ← μ v + ∂L/∂w    w ← w − γ v

        Args:
            features: of the backbone, with or without gradient.
            labels: -1 for none.

        Returns:
            The mean "loss" and "accuracy" of the labelled features before the step, as tensors: reading them waits for the device.
            Both are NaN where no feature has a label.
        """
        seen = labels >= 0
        before = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        self.train()
        with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):  # backward follows the autocast around it, too
            votes = self(features)  # unlabelled features still count for the statistics
            loss = cross_entropy(votes, labels.where(seen, -1), ignore_index=-1)  # an index of `seen` would wait for the device
            gradients = torch.autograd.grad(loss, (self.W, self.b))
        with torch.no_grad():
            for weight, v, gradient in zip((self.W, self.b), (self.W_velocity, self.b_velocity), gradients, strict=True):
                weight.add_(v.mul_(self.momentum).add_(gradient), alpha=-self.lr)
        for name, tensor in self.state_dict().items():  # asking whether there is a label would wait for the device as well
            tensor.copy_(tensor.where(seen.any(), before[name]))
        return {"loss": loss.detach(), "accuracy": ((votes.argmax(1) == labels) & seen).sum() / seen.sum()}

    @torch.no_grad()
    def accuracy(self, features: Float[Tensor, "n D"], labels: Int64[Tensor, " n"]) -> float:
        """Return the share of the labelled features that are classified rightly, with the running statistics."""
        seen = labels >= 0
        assert seen.any(), "no feature has a label"
        self.eval()
        with torch.autocast(features.device.type, enabled=False):
            votes = self(features[seen])
        return (votes.argmax(1) == labels[seen]).sum().item() / len(votes)
