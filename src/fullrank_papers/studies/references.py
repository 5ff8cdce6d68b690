"""What the objectives of the comparison are measured against: raw pixels, the untrained network, and the same network
trained with labels.

For each seed and data set of frossl/benchmark, the images, the preprocessing, the probes and the network are those of
the compared runs. The supervised network sees as many images as 20 epochs of two views.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, permutations, product
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import torch

from fullrank.evaluation.evaluate import score_networks
from fullrank.evaluation.features import Network, calibrate_batchnorm, raw_pixels
from fullrank.evaluation.finetune import SupervisedTraining
from fullrank.evaluation.protocol import Scoring, SupervisedProtocol
from fullrank.evaluation.task import Task
from fullrank.images import as_images, channel_statistics, load_images
from fullrank.models.model import Model, build_untrained
from fullrank.models.model_images import LabelledSplits
from fullrank.recipes import DataConfig, build_preprocess
from fullrank.run import read_json, write_json
from fullrank.spectrum import Spectrum
from fullrank.sweep.cell import identify, split
from fullrank_papers import studies
from fullrank_papers.figures.frossl.benchmark import FAIR


def measure(
    *,
    data: str,
    transfer: str,
    seeds: int = 12,
    images: int = 5000,
    epochs: int = 40,
    parallel: int = 1,
    runs: Path = Path("runs/references"),
) -> dict[str, Any]:
    """Score raw pixels, the untrained and the supervised network on two data sets, and the supervised network on the
    other one too. Seeds that are in `runs` are not scored again.

    Args:
        data: CIFAR-10.
        transfer: CIFAR-100.
        seeds: one choice of images, untrained network and training for each.
        images: training images of each choice.
        epochs: of the supervised training; 40 epochs of one view are 20 epochs of two.
        parallel: seeds at the same time.
        runs: folder of the rows of each seed.
    """
    jobs = list(product(range(seeds), permutations((data, transfer))))
    score = partial(score_seed, images=images, epochs=epochs, folder=runs / f"{images}-{epochs}")
    with ProcessPoolExecutor(parallel, mp_context=get_context("spawn")) as pool:
        return {"rows": list(chain.from_iterable(pool.map(score, *zip(*jobs, strict=True))))}


def score_seed(seed: int, sources: Sequence[str], *, images: int, epochs: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of one seed on the first source; read them if they are in the folder, else store them there."""
    torch.set_num_threads(1)
    tasks = [open_task(source, seed, images) for source in sources]
    path = folder / f"{tasks[0].splits.data}-{seed}.json"
    if not path.exists():
        write_json(path, {"rows": list(score_references(tasks, seed, SupervisedProtocol(epochs=epochs)))})
    return read_json(path)["rows"]


def open_task(source: str, seed: int, images: int) -> Task:
    """Return the images of a compared run: its training images, and all test images."""
    data = DataConfig(source=source, subset=images, subset_seed=seed)
    found = split(data)
    return Task(LabelledSplits(found.train, found.test, identify(data)[0], found.statement))


def score_references(tasks: Sequence[Task], seed: int, protocol: SupervisedProtocol) -> Iterator[dict[str, Any]]:
    """Yield the row of each reference on the first task; the supervised network, which is trained on it, is scored on
    all.
    """
    own = tasks[0]
    mean, std = channel_statistics(load_images(as_images(own.splits.train), channels=3))
    preprocess = build_preprocess(replace(FAIR, data=replace(FAIR.data, mean=mean, std=std)))
    untrained, supervised = (build_untrained(FAIR.backbone, FAIR.data.channels, seed) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    calibrate_batchnorm(untrained, own.splits.train, preprocess, generator=generator)
    start = process_time()
    model = Model("supervised", supervised, preprocess, FAIR.backbone)
    SupervisedTraining.of(own, model, protocol).run(supervised, seed=seed)
    seconds = process_time() - start
    yield score(raw_pixels(preprocess), tasks[:1], seed)
    yield score(Network("untrained", untrained, preprocess), tasks[:1], seed)
    yield score(Network("supervised", supervised, preprocess), tasks, seed) | {"cpu_seconds": round(seconds, 1)}


def score(network: Network, tasks: Sequence[Task], seed: int) -> dict[str, Any]:
    """Return the row of a network on images, with the probes of a compared run."""
    scores, ranks = {}, []
    for task in tasks:
        (features,), outcomes = score_networks([network], task, Scoring(probes=("linear", "knn")))
        scores[task.splits.data] = {x.score.probe: x.score.value for x in outcomes if x.score.metric == "accuracy"}
        ranks.append(Spectrum.from_embeddings(features.test.X).effective_rank())
    rank = {"effective_rank_of_test_images": ranks[0]}
    return {"method": network.name, "seed": seed, "data": tasks[0].splits.data, "scores": scores} | rank


if __name__ == "__main__":
    studies.run(measure, "references")
