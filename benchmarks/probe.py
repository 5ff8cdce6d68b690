"""Compare the solver of the linear probe with scikit-learn's: time, passes over the features, objective, gradient and
test accuracy.

    python -m benchmarks.probe                                   # 10,000 generated features: a minute
    python -m benchmarks.probe --data parquet:path/to/cifar10    # raw pixels of an image set too

A probe fits five penalties to nine tenths of the features and the best one to all, as `fullrank evaluate` does.
scikit-learn's solver is L-BFGS with 100 iterations per fit, each from the last solution. `equal objective` compares
single fits: scikit-learn's L-BFGS runs until its objective is as low as ours. Its newton-cholesky needs a Hessian of
(K·D)² numbers, so it takes part for few dimensions only. Objectives and gradients are computed in float64. Times are
CPU time on one thread.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression as Sklearn
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from benchmarks import timing
from fullrank.evaluation import accuracy, linear_probe, standardize
from fullrank.evaluation.logistic import LogisticRegression
from fullrank.images import load_images, train_and_test
from fullrank.run import write_json

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
SINGLE = 1e-3
MAX_NEWTON = 1_000  # K·D of newton-cholesky
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def main(*, data: str | None = None, images: int = 10_000, out: Path = timing.RESULTS / "probe.json") -> None:
    """Compare the solvers.

    Args:
        data: a source of labelled images.
        images: training images and generated features.
        out: the JSON file.
    """
    torch.set_num_threads(1)
    threadpool_limits(1)  # also for scikit-learn
    warnings.simplefilter("ignore")  # scikit-learn warns that 100 iterations are not enough
    sets = {f"{D} features, 10 classes": lambda D=D: generated(images, D) for D in (64, 512)}
    if data:
        sets["raw pixels"] = lambda: pixels(data, images)
    rows = {name: compare(name, *make()) for name, make in sets.items()}
    environment = timing.environment("scikit-learn", "scipy", images=images, penalties=PENALTIES)
    write_json(out, {"environment": environment, "sets": rows})


def generated(n: int, D: int, *, classes: int = 10, m: int = 5_000) -> Data:
    """Return features of classes that overlap, with a covariance whose eigenvalues fall like 1/j, as those of a trained
    backbone."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, D, generator=generator) * 1.5 / D**0.25
    y = torch.randint(classes, (n + m,), generator=generator)
    scales = torch.arange(1, D + 1).float() ** -0.5
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator))[0]
    X = ((centres[y] + torch.randn(n + m, D, generator=generator)) * scales @ rotation).relu()
    X, X_test = standardize(X[:n], X[n:])
    return X, y[:n], X_test, y[n:]


def pixels(source: str, n: int) -> Data:
    splits = train_and_test(source)
    chosen = np.random.default_rng(0).permutation(len(splits.train))[:n]
    train, test = (load_images(images, channels=3) for images in (splits.train.subset(chosen), splits.test))
    X, X_test = standardize(*(images.pixels.flatten(1).float() / 255 for images in (train, test)))
    return X, train.labels, X_test, test.labels


def compare(name: str, *data: Tensor) -> dict[str, Any]:
    """Return times and accuracies of the whole probe, and single fits; print both."""
    X, y, _, _ = data
    probe: dict[str, Any] = {}
    solvers = {
        "fullrank": lambda: accuracy(linear_probe(*data[:3], penalties=PENALTIES).logits, data[3]),
        "scikit-learn lbfgs": lambda: sklearn_probe(*data),
    }
    for solver, work in solvers.items():
        found: list[float] = []
        seconds = timing.duration(lambda work=work, found=found: found.append(work()), "cpu")
        probe[solver] = {"seconds": seconds, "accuracy": found[0]}
    probe["ratio"] = probe["scikit-learn lbfgs"]["seconds"] / probe["fullrank"]["seconds"]
    fits, table = single_fits(X, y), Table("solver", "what", "seconds", "result", title=f"{name}, {tuple(X.shape)}")
    for solver in solvers:
        table.add_row(solver, "probe", f"{probe[solver]['seconds']:.1f}", f"accuracy {probe[solver]['accuracy']:.4f}")
    for solver, row in fits.items():
        text = f"{row['passes']} passes, objective {row['objective']:.7f}, gradient {row['largest gradient']:.1e}"
        table.add_row(solver, "one fit", f"{row['seconds']:.2f}", text)
    Console().print(table)
    return {"n": len(X), "D": X.shape[1], "probe": probe, "equal objective": fits}


def sklearn_probe(X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor) -> float:
    """Return the test accuracy of the same probe with scikit-learn's solver."""
    held_out = np.random.default_rng(0).permutation(len(y)) < len(y) // 10
    model, scores = Sklearn(warm_start=True, max_iter=100), []
    for penalty in PENALTIES:
        model.set_params(C=1 / (penalty * (~held_out).sum())).fit(X.numpy()[~held_out], y.numpy()[~held_out])
        scores.append(model.score(X.numpy()[held_out], y.numpy()[held_out]))
    best = Sklearn(C=1 / (PENALTIES[int(np.argmax(scores))] * len(y)), max_iter=100).fit(X.numpy(), y.numpy())
    return float(best.score(X_test.numpy(), y_test.numpy()))


def single_fits(X: Tensor, y: Tensor) -> dict[str, Any]:
    """Fit one penalty; scikit-learn's L-BFGS gets iterations until its objective is that of ours."""
    found: dict[str, Any] = {}

    def ours() -> tuple[Any, Any, int]:
        model = LogisticRegression(X, y).fit(SINGLE)
        return model.W, model.b, model.passes

    def theirs(**options: Any) -> tuple[Any, Any, int]:
        model = Sklearn(C=1 / (SINGLE * len(y)), **options).fit(X.numpy(), y.numpy())
        return model.coef_, model.intercept_, model.n_iter_[0]

    def record(solver: str, fit: Callable[[], tuple[Any, Any, int]]) -> float:
        result: list[Any] = []
        seconds = timing.duration(lambda: result.extend(fit()), "cpu")
        W, b = (torch.as_tensor(each).double().clone().requires_grad_() for each in result[:2])
        loss = cross_entropy(linear(X.double(), W, b), y) + SINGLE / 2 * W.square().sum()
        largest = max(gradient.abs().max().item() for gradient in torch.autograd.grad(loss, (W, b)))
        numbers = {"seconds": seconds, "passes": int(result[2]), "objective": loss.item(), "largest gradient": largest}
        found[solver] = numbers
        return loss.item()

    least = record("fullrank", ours)
    for n in (50, 100, 300, 1000):
        if record("scikit-learn lbfgs", lambda n=n: theirs(max_iter=n, tol=1e-9)) <= least + 1e-6:
            break
    if X.shape[1] * len(y.unique()) <= MAX_NEWTON:
        record("scikit-learn newton-cholesky", lambda: theirs(solver="newton-cholesky", tol=1e-6))
    return found


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
