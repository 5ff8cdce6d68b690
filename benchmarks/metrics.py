"""Measure how few samples, a mean, rounding and ε change the metrics of embeddings with a known spectrum.

    python benchmarks/metrics.py            # two minutes

The embeddings are Gaussian, and results are means over the seeds. Writes `results/metrics.json`, which
`docs/spectrum.md` shows.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank.spectrum import Spectrum, functional, lidar

SEEDS = (0, 1, 2, 3, 4)
FEW = {"D": 256, "n": (128, 256, 512, 2560, 25_600)}
MEAN = {"n": 5000, "D": 64, "means": (0, 1, 3, 10)}
DECAY = {"D": 256}  # λ_j = 1/j
RANK = {"n": 4096, "D": 2048, "rank": 16}
LIDAR = {"D": 64, "q": 10, "n": (65, 128, 256, 640, 6400), "rank": 8}


def main():
    torch.set_num_threads(1)
    result = {
        "seeds": SEEDS,
        "few": {"D": FEW["D"], "rows": [{"n": n} | mean_of(few_samples, n) for n in FEW["n"]]},
        "mean": {"n": MEAN["n"], "D": MEAN["D"], "rows": [{"mean": m} | mean_of(shifted, m) for m in MEAN["means"]]},
        "decay": DECAY | decaying(),
        "rank": RANK
        | {
            "rows": [
                {"dtype": str(t).removeprefix("torch.")} | mean_of(rounded, t) for t in (torch.float32, torch.bfloat16)
            ]
        },
        "lidar": {name: LIDAR[name] for name in ("D", "q", "rank")}
        | {"rows": [{"n": n} | mean_of(views, n) for n in LIDAR["n"]]},
        "environment": platform_info(),
    }
    write_json(Path(__file__).parent / "results" / "metrics.json", result)


def mean_of(experiment: Callable[..., dict[str, float]], setting) -> dict[str, float | None]:
    """Return the mean of every result over the seeds; None if the mean is infinite."""
    rows = [experiment(setting, torch.Generator().manual_seed(seed)) for seed in SEEDS]
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    print(setting, means, flush=True)
    return {name: round(mean, 4) if mean < float("inf") else None for name, mean in means.items()}


def gaussian(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def few_samples(n: int, rng: torch.Generator) -> dict[str, float]:
    """Return metrics of n samples with equal true eigenvalues."""
    spectrum = Spectrum.from_embeddings(gaussian(rng, n, FEW["D"]))
    return {
        "effective rank": spectrum.effective_rank(),
        "participation ratio": spectrum.participation_ratio(),
        "participation ratio, corrected": spectrum.participation_ratio(corrected=True),
        "stable rank": spectrum.stable_rank(),
        "condition number": spectrum.condition_number(),
    }


def shifted(mean: float, rng: torch.Generator) -> dict[str, float]:
    """Return metrics for equal true eigenvalues and a mean with all coordinates equal to `mean`."""
    spectrum = Spectrum.from_embeddings(gaussian(rng, MEAN["n"], MEAN["D"]) + mean)
    return {"effective rank": spectrum.effective_rank(), "RankMe": spectrum.rank_me()}


def decaying() -> dict[str, float]:
    eigenvalues = 1 / torch.arange(1, DECAY["D"] + 1, dtype=torch.float64)
    result = {
        "effective rank": functional.effective_rank(eigenvalues),
        "participation ratio": functional.participation_ratio(eigenvalues),
    }
    return {name: round(value.item(), 4) for name, value in result.items()}


def rounded(dtype: torch.dtype, rng: torch.Generator) -> dict[str, float]:
    """Return RankMe for rank 16 in 2,048 dimensions: ours, and with ε added to every p (in float32, as in other
    libraries)."""
    Z = (gaussian(rng, RANK["n"], RANK["rank"]) @ gaussian(rng, RANK["rank"], RANK["D"])).to(dtype)
    p = functional.normalize(torch.linalg.svdvals(Z.float()))
    every = {f"ε = {epsilon:g}": torch.special.entr(p + epsilon).sum().exp().item() for epsilon in (1e-7, 1e-5)}
    return {"here": Spectrum.from_embeddings(Z).rank_me(), **every}


def views(n: int, rng: torch.Generator) -> dict[str, float]:
    """Return LiDAR of n images that differ in 8 of 64 directions; q views per image vary in all directions. Also group
    views at random."""
    X = gaussian(rng, n, LIDAR["q"], LIDAR["D"])
    X[..., : LIDAR["rank"]] += 10 * gaussian(rng, n, 1, LIDAR["rank"])
    mixed = X.flatten(0, 1)[torch.randperm(n * LIDAR["q"], generator=rng)].reshape(X.shape)
    return {"LiDAR": lidar(X), "grouped at random": lidar(mixed)}


if __name__ == "__main__":
    main()
