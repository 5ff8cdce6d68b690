"""What few samples, a mean, rounding and ε make of the measures, on embeddings whose true spectrum is known.

    python benchmarks/readings.py            # two minutes

Gaussian embeddings; numbers are means over the seeds. Writes `results/readings.json`, which `docs/spectrum.md` shows.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fullrank.run import write_json
from fullrank.run.environment import platform_info
from fullrank.spectrum import Spectrum, lidar, measures

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
        "few": {"D": FEW["D"], "rows": [{"n": n} | mean_of(few, n) for n in FEW["n"]]},
        "mean": {"n": MEAN["n"], "D": MEAN["D"], "rows": [{"mean": m} | mean_of(moved, m) for m in MEAN["means"]]},
        "decay": DECAY | decaying(),
        "rank": RANK | {"rows": [{"dtype": str(t).removeprefix("torch.")} | mean_of(rounded, t) for t in (torch.float32, torch.bfloat16)]},
        "lidar": {name: LIDAR[name] for name in ("D", "q", "rank")} | {"rows": [{"n": n} | mean_of(views, n) for n in LIDAR["n"]]},
        "environment": platform_info(),
    }
    write_json(Path(__file__).parent / "results" / "readings.json", result)


def mean_of(measure: Callable[..., dict[str, float]], setting) -> dict[str, float | None]:
    """The mean over the seeds of every number, None where it is infinite."""
    rows = [measure(setting, torch.Generator().manual_seed(seed)) for seed in SEEDS]
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    print(setting, means, flush=True)
    return {name: round(mean, 4) if mean < float("inf") else None for name, mean in means.items()}


def gaussian(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def few(n: int, rng: torch.Generator) -> dict[str, float]:
    """Equal eigenvalues, seen by n samples."""
    spectrum = Spectrum.from_embeddings(gaussian(rng, n, FEW["D"]))
    return {
        "effective rank": spectrum.effective_rank(),
        "participation ratio": spectrum.participation_ratio(),
        "participation ratio, corrected": spectrum.participation_ratio(corrected=True),
        "stable rank": spectrum.stable_rank(),
        "condition number": spectrum.condition_number(),
    }


def moved(mean: float, rng: torch.Generator) -> dict[str, float]:
    """Equal eigenvalues, with every coordinate of the mean at `mean`."""
    spectrum = Spectrum.from_embeddings(gaussian(rng, MEAN["n"], MEAN["D"]) + mean)
    return {"effective rank": spectrum.effective_rank(), "RankMe": spectrum.rank_me()}


def decaying() -> dict[str, float]:
    eigenvalues = 1 / torch.arange(1, DECAY["D"] + 1, dtype=torch.float64)
    found = {"effective rank": measures.effective_rank(eigenvalues), "participation ratio": measures.participation_ratio(eigenvalues)}
    return {name: round(value.item(), 4) for name, value in found.items()}


def rounded(dtype: torch.dtype, rng: torch.Generator) -> dict[str, float]:
    """16 directions of 2,048: RankMe here, and with ε on the share of every singular value, which are taken in float32 as others do."""
    Z = (gaussian(rng, RANK["n"], RANK["rank"]) @ gaussian(rng, RANK["rank"], RANK["D"])).to(dtype)
    p = measures.shares(torch.linalg.svdvals(Z.float()))
    every = {f"ε = {epsilon:g}": torch.special.entr(p + epsilon).sum().exp().item() for epsilon in (1e-7, 1e-5)}
    return {"here": Spectrum.from_embeddings(Z).rank_me(), **every}


def views(n: int, rng: torch.Generator) -> dict[str, float]:
    """LiDAR of n images that differ in 8 directions of 64, seen in q views that vary in all; then with views grouped at random."""
    X = gaussian(rng, n, LIDAR["q"], LIDAR["D"])
    X[..., : LIDAR["rank"]] += 10 * gaussian(rng, n, 1, LIDAR["rank"])
    mixed = X.flatten(0, 1)[torch.randperm(n * LIDAR["q"], generator=rng)].reshape(X.shape)
    return {"LiDAR": lidar(X), "grouped at random": lidar(mixed)}


if __name__ == "__main__":
    main()
