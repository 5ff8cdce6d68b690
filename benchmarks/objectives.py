"""Compare every objective with the same network untrained, on the embedded digits, over seeds.

    python benchmarks/objectives.py --parallel 2 --epochs 20 --spectrum.samples 359

Each run is `fullrank pretrain digits --objective NAME`, then `fullrank evaluate`, with the optimizer and schedule of
the recipe and the defaults of the objective. The recipe was tuned for FroSSL only; `FLAGS` lists the exceptions.
`--only NAME …` runs only these objectives; the results of the other objectives do not change. Finished runs are not
repeated. Writes `results/objectives-digits.json`.
"""

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scipy.stats import t

from fullrank.objectives import OBJECTIVES
from fullrank.run import Run, read_json, write_json
from seeds import ENVIRONMENT, run_seed

PROBES = {"linear": "linear (full batch)", "kNN": "kNN", "few": "linear, 2 labels per class"}
FLAGS = {
    **{
        name: ["--hyper.d0", "64"] for name in ("directclr", "directclr_paper")
    },  # half of the backbone's 128 dimensions
    **{
        name: ["--optimizer.lr", "1e-3"] for name in ("simsiam", "byol")
    },  # with the recipe's 5e-3, results are near the untrained network
}
OUT = Path("results/objectives-digits.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/objectives"))
    options, flags = parser.parse_known_args()

    def pretrain_and_evaluate(name_and_seed):
        name, seed = name_and_seed
        arguments = argparse.Namespace(
            recipe="digits",
            data=None,
            parallel=options.parallel,
            runs=options.runs / name,
            flags=["--objective", name, *FLAGS.get(name, ()), *flags],
        )
        return name, run_seed(arguments, seed)

    with ThreadPoolExecutor(options.parallel) as pool:
        paths = list(pool.map(pretrain_and_evaluate, [(name, seed) for name in options.only for seed in options.seeds]))
    before = read_json(OUT)["objectives"] if OUT.exists() else {}
    rows = before | {name: row([Run(path) for n, path in paths if n == name]) for name in options.only}
    environment = read_json(paths[0][1] / "environment.json")
    write_json(
        OUT,
        {
            "recipe": "digits",
            "flags": {"all": flags} | FLAGS,
            "seeds": options.seeds,
            "environment": {key: environment[key] for key in ENVIRONMENT},
            "commit": environment["commit"],
            "objectives": {name: rows[name] for name in OBJECTIVES if name in rows},
        },
    )


def row(runs: list[Run]) -> dict:
    """Return the scores over seeds, and the margin over the untrained network of the same seed with a 95 % interval
    (Student's t)."""
    result = {}
    for short, probe in PROBES.items():
        learned, untrained = (
            [score(run, features, probe) for run in runs] for features in ("backbone", "untrained backbone")
        )
        margins = [a - b for a, b in zip(learned, untrained, strict=True)]
        half = (
            t.ppf(0.975, len(runs) - 1) * statistics.stdev(margins) / len(runs) ** 0.5
            if len(runs) > 1
            else float("inf")
        )
        result[short] = {
            "learned": learned,
            "untrained": untrained,
            "mean": statistics.mean(learned),
            "sd": statistics.stdev(learned) if len(runs) > 1 else None,
            "margin": statistics.mean(margins),
            "interval": [statistics.mean(margins) - half, statistics.mean(margins) + half],
        }
    last = [run.metrics.spectrum[-1] for run in runs]
    result["effective_rank"] = {
        place: [getattr(row, place).effective_rank for row in last] for place in ("backbone", "projector")
    }
    result["seconds"] = [run.environment["duration_seconds"] for run in runs]
    return result


def score(run: Run, features: str, probe: str) -> float:
    return next(s.accuracy for s in run.evaluations[0].scores if (s.features, s.probe) == (features, probe))


if __name__ == "__main__":
    main()
