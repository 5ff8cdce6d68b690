"""Evaluation of a frozen backbone: each probe is scored on the features of the backbone, on raw pixels and on the
features of the untrained network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fullrank.errors import UserError, pick
from fullrank.evaluation.feature_sets import feature_sets, fresh_errors
from fullrank.evaluation.multi_label import MultiLabelResult, chance_precision
from fullrank.evaluation.outcomes import few_shot_curve, groups_of, judge
from fullrank.evaluation.probes import MULTI_LABEL_PROBES, PROBES, score_result, score_several
from fullrank.evaluation.protocol import DEFAULT_PROBES, Protocols, resolve_protocols
from fullrank.evaluation.result import Evaluation, majority_rate
from fullrank.evaluation.scorable import report_unlabelled, why_not_scorable
from fullrank.evaluation.supervised import FROM_SCRATCH, SUPERVISED, Supervised, train_supervised
from fullrank.evaluation.verdict import verdict
from fullrank.images import DecodeErrors, Images, MemoryImages, Preprocess
from fullrank.models.model_images import name_data


def evaluate_backbone(
    backbone: nn.Module,
    untrained: nn.Module | None,
    preprocess: Preprocess,
    train: Images | MemoryImages,
    test: Images | MemoryImages,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    probes: Sequence[str] = DEFAULT_PROBES,
    protocols: Mapping[str, Any] | Protocols | None = None,
    baselines: bool = True,
    references: Mapping[str, tuple[nn.Module, Preprocess]] | None = None,
    supervised: Supervised | None = None,
    training: Mapping[float, float] | None = None,
    dimensions: slice = slice(None),
    model: str = "",
    data: str | None = None,
    step: int | None = None,
    statement: str = "",
    batch_size: int = 512,
    workers: int = 0,
    decode_errors: DecodeErrors | None = None,
    progress: Callable[[str], Any] = lambda line: None,
) -> Evaluation:
    """Score every probe on the features of a backbone, on raw pixels and on the features of the same network untrained.

    Images with several labels are scored by the linear probe and kNN; their score is the mean average precision.
    Unlabelled images never count as errors. `Evaluation.left_out` lists their number, and everything else that is not
    scored, with the reason.

    Args:
        backbone: maps float32 images (n, C, S, S) to features (n, D); the function verifies that the weights do not
            change.
        untrained: the same network with untrained weights, or None; the function calibrates BatchNorm on training
            images.
        preprocess: the preprocessing of the backbone.
        train: images for training the probes.
        test: images for scoring the probes.
        device: device of the backbone and of the probes.
        seed: seed of every random draw.
        probes: names in `PROBES`.
        protocols: probe → its protocol, or some of its numbers: `{"knn": {"k": 200}}` (see
            `fullrank.config.PROTOCOLS`).
        baselines: whether to score raw pixels and the untrained backbone too.
        references: name → another network and its preprocessing, which are scored and compared with the backbone too.
        supervised: a network that is trained with the labels alone, and compared with the backbone; None: none.
        training: epoch of pretraining → accuracy of a probe after this epoch, from which the verdict says whether more
            epochs may help.
        dimensions: dimensions of the backbone and of the untrained backbone that are scored: `slice(360)`, `slice(360,
            None)`.
        model: the model argument of the command line.
        data: name of the data set, the key of its scores; by default `name_data(train, test)`.
        step: step of the checkpoint.
        statement: one sentence that describes the training and the test images.
        batch_size: images per forward pass.
        workers: number of processes that decode images; 0 decodes in this process.
        decode_errors: records images that cannot be read; the default stops the evaluation if more than 10 % are
            unreadable.
        progress: receives a short description of each step when the step begins.

    Raises:
        AssertionError: the backbone changed during the evaluation.
        UserError: a probe or a number of a protocol is unknown, the images lack the labels for a score, the features do
            not have these dimensions, or too many images are unreadable.
    """
    selected, numbers = [pick(name, PROBES, "probe") for name in probes], resolve_protocols(protocols)
    if not selected:
        raise UserError(f"no probe, expected at least one of {', '.join(PROBES)}")
    if reason := why_not_scorable(train, test, several=True):
        raise UserError(f"nothing can be scored: {reason}")
    decode_errors = DecodeErrors() if decode_errors is None else decode_errors
    counts, outcomes, majority, groups, test_features, chance = (len(train), len(test)), [], None, None, None, None
    left_out = [*report_unlabelled(train, "training"), *report_unlabelled(test, "test")]
    several = train.multi_labels is not None
    if several:
        probes, unused = [[name for name in probes if (name in MULTI_LABEL_PROBES) == known] for known in (True, False)]
        if not probes:
            raise UserError(
                f"no probe of {', '.join(unused)} scores several labels an image; use {' and '.join(MULTI_LABEL_PROBES)}"
            )
        selected = [MULTI_LABEL_PROBES[name] for name in probes]
        left_out += [
            f"{name}: the images have several labels each, which {' and '.join(MULTI_LABEL_PROBES)} score"
            for name in unused
        ]
    if baselines and untrained is None:
        left_out.append("untrained backbone: the model cannot be re-initialised")
    progress("features of the backbone")
    extract_options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "decode_errors": decode_errors}
    options: dict[str, Any] = {
        "baselines": baselines,
        "dimensions": dimensions,
        "device": device,
        "seed": seed,
        "progress": progress,
    }
    sets = feature_sets(
        backbone, untrained, preprocess, train, test, references=references or {}, **options, **extract_options
    )
    for features in sets:
        counts, majority = (len(features.train.X), len(features.test.X)), majority_rate(features.test.labels)
        chance = chance_precision(features.test)
        for name, probe in zip(probes, selected, strict=True):
            progress(f"{name}: {features.name}")
            outcomes += probe(features, device, seed, numbers[name])
        groups, test_features = groups_of(test, features.test), features.test
    if supervised is not None and test_features is not None:
        progress(f"{SUPERVISED}: {supervised.epochs} epochs")
        again: dict[str, Any] = {**extract_options, "decode_errors": fresh_errors(decode_errors)}
        result = train_supervised(supervised, preprocess, train, test, seed=seed, device=device, **again)
        if isinstance(result, MultiLabelResult):
            outcomes.append(score_several(SUPERVISED, FROM_SCRATCH, result, supervised.numbers(), test_features))
        else:
            outcomes += score_result(
                SUPERVISED, FROM_SCRATCH, result, supervised.numbers(), test_features.labels, test_features.classes
            )
    scores, comparisons = judge(outcomes, groups, seed=seed)
    if decode_errors.reasons:
        left_out.append(f"{len(decode_errors.reasons)} images: unreadable")
    return Evaluation(
        model=model,
        data=name_data(train, test) if data is None else data,
        step=step,
        train_images=counts[0],
        test_images=counts[1],
        majority=majority,
        chance=chance,
        statement=statement,
        scores=scores,
        left_out=tuple(left_out),
        comparisons=comparisons,
        verdict=verdict(comparisons, few_shot_curve(scores), training),
    )
