"""Compare the solver of the linear probe with scikit-learn's: time, passes over the features, objective, gradient and
test accuracy.

    python benchmarks/probe.py                                   # 10,000 generated features like those of a network: a minute
    python benchmarks/probe.py --data parquet:path/to/cifar10    # raw pixels of an image set too
    python benchmarks/probe.py --data … --images 50000           # at full size: the path of penalties with scikit-learn takes minutes

A probe fits five penalties to nine tenths of the features and the best one to all, as `fullrank evaluate` does.
scikit-learn's solver is L-BFGS with 100 iterations per fit, each from the last solution. `equal objective` compares
single fits: scikit-learn's L-BFGS runs until its objective is as low as ours. Its newton-cholesky needs a Hessian of
(K·D)² numbers, so it takes part for few dimensions only, and saga for few features. Objectives and gradients are
computed in float64. Times are CPU time on one thread.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression as Sklearn
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

import timing
from fullrank.evaluation import linear_probe, standardize
from fullrank.evaluation.linear import hold_out
from fullrank.evaluation.logistic import LogisticRegression
from fullrank.images import load_images, train_and_test
from fullrank.run import write_json

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
SINGLE = 1e-3
MAX_NEWTON, MAX_SAGA = 1_000, 4_000_000  # K·D of newton-cholesky, n·D of saga
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a source of labelled images")
    parser.add_argument("--images", type=int, default=10_000, help="training images and generated features")
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "probe.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)  # also for scikit-learn
    warnings.simplefilter("ignore")  # scikit-learn warns that 100 iterations are not enough
    sets: dict[str, Callable[[], Data]] = {
        "64 features, 10 classes": lambda: generated(arguments.images, 64),
        "512 features, 10 classes": lambda: generated(arguments.images, 512),
    }
    if arguments.data:
        sets["raw pixels"] = lambda: pixels(arguments.data, arguments.images)
    rows = {name: compare(name, *make()) for name, make in sets.items()}
    environment = timing.environment("scikit-learn", "scipy", images=arguments.images, penalties=PENALTIES)
    write_json(arguments.out, {"environment": environment, "sets": rows})


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
    train = load_images(splits.train.subset(np.random.default_rng(0).permutation(len(splits.train))[:n]), channels=3)
    test = load_images(splits.test, channels=3)
    X, X_test = standardize(train.pixels.flatten(1).float() / 255, test.pixels.flatten(1).float() / 255)
    return X, train.labels, X_test, test.labels


def compare(name: str, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor) -> dict[str, Any]:
    data = (X, y, X_test, y_test)
    probe: dict[str, Any] = {}
    accuracy: dict[str, float] = {}

    def ours() -> None:
        accuracy["fullrank"] = linear_probe(*data, penalties=PENALTIES).accuracy

    def scikit_learn() -> None:
        accuracy["scikit-learn lbfgs"] = sklearn_probe(*data)

    for solver, work in (("fullrank", ours), ("scikit-learn lbfgs", scikit_learn)):
        seconds = timing.duration(work, "cpu")
        probe[solver] = {"seconds": seconds, "accuracy": accuracy[solver]}
    probe["ratio"] = probe["scikit-learn lbfgs"]["seconds"] / probe["fullrank"]["seconds"]
    fits = single_fits(X, y)
    show(name, X, probe, fits)
    return {"n": len(X), "D": X.shape[1], "probe": probe, "equal objective": fits}


def sklearn_probe(X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor) -> float:
    """Return the test accuracy of the same probe with scikit-learn's solver."""
    held_out = hold_out(y.numpy(), seed=0)
    model, scores = Sklearn(warm_start=True, max_iter=100), []
    for penalty in PENALTIES:
        model.set_params(C=1 / (penalty * (~held_out).sum())).fit(X.numpy()[~held_out], y.numpy()[~held_out])
        scores.append(model.score(X.numpy()[held_out], y.numpy()[held_out]))
    best = Sklearn(C=1 / (PENALTIES[int(np.argmax(scores))] * len(y)), max_iter=100).fit(X.numpy(), y.numpy())
    return float(best.score(X_test.numpy(), y_test.numpy()))


def single_fits(X: Tensor, y: Tensor) -> dict[str, Any]:
    """Fit one penalty by each solver that fits into memory; scikit-learn's L-BFGS gets iterations until its objective
    is that of ours."""
    found: dict[str, Any] = {}

    def record(solver: str, fit: Callable[[], tuple[Any, Any, int]]) -> float:
        result: list[Any] = []
        seconds = timing.duration(lambda: result.extend(fit()), "cpu")
        W, b, passes = result
        loss, gradient = objective(torch.as_tensor(W).double(), torch.as_tensor(b).double(), X, y)
        found[solver] = {
            "seconds": seconds,
            "passes or iterations": int(passes),
            "objective": loss,
            "largest gradient": gradient,
        }
        return loss

    def fullrank() -> tuple[Any, Any, int]:
        model = LogisticRegression(X, y).fit(SINGLE)
        return model.W, model.b, model.passes

    def scikit_learn(solver: str, **options: Any) -> Callable[[], tuple[Any, Any, int]]:
        def fit() -> tuple[Any, Any, int]:
            model = Sklearn(C=1 / (SINGLE * len(y)), solver=solver, **options).fit(X.numpy(), y.numpy())
            return model.coef_, model.intercept_, model.n_iter_[0]

        return fit

    least = record("fullrank", fullrank)
    for iterations in (50, 100, 300, 1000):
        if record("scikit-learn lbfgs", scikit_learn("lbfgs", max_iter=iterations, tol=1e-9)) <= least + 1e-6:
            break
    if X.shape[1] * len(y.unique()) <= MAX_NEWTON:
        record("scikit-learn newton-cholesky", scikit_learn("newton-cholesky", tol=1e-6))
    if X.numel() <= MAX_SAGA:
        record("scikit-learn saga", scikit_learn("saga", max_iter=200, tol=1e-5))
    return found


def objective(W: Tensor, b: Tensor, X: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the objective and the largest entry of its gradient in float64."""
    W, b = W.clone().requires_grad_(), b.clone().requires_grad_()
    loss = cross_entropy(linear(X.double(), W, b), y) + SINGLE / 2 * W.square().sum()
    gradients = torch.autograd.grad(loss, (W, b))
    return loss.item(), max(gradient.abs().max().item() for gradient in gradients)


def show(name: str, X: Tensor, probe: dict[str, Any], fits: dict[str, Any]) -> None:
    console = Console()
    both = probe["fullrank"], probe["scikit-learn lbfgs"]
    table = Table("", "fullrank", "scikit-learn lbfgs", title=f"{name}, {len(X):,} × {X.shape[1]:,}: the whole probe")
    table.add_row("seconds", *(f"{each['seconds']:.1f}" for each in both))
    table.add_row("test accuracy", *(f"{each['accuracy']:.4f}" for each in both))
    console.print(table, f"ratio of the times: {probe['ratio']:.1f}", highlight=False)
    table = Table("one fit", "seconds", "passes or iterations", "objective", "largest gradient")
    for solver, row in fits.items():
        table.add_row(
            solver,
            f"{row['seconds']:.2f}",
            str(row["passes or iterations"]),
            f"{row['objective']:.7f}",
            f"{row['largest gradient']:.1e}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
