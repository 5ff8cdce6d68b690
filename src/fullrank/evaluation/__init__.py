"""Judging a MODEL: scores of its features with intervals and a verdict, fine-tuning, choosing among models, neighbours,
and an online probe that is trained together with the backbone.
"""

from fullrank.evaluation.evaluate import evaluate, score_model
from fullrank.evaluation.features import FeatureSet, calibrate_batchnorm, raw_pixels, standardize
from fullrank.evaluation.linear import few_shot, gradient_probe, linear_probe
from fullrank.evaluation.online import OnlineProbe
from fullrank.evaluation.outcomes import Prediction, accuracy
from fullrank.evaluation.probes import PROBES, knn, linear_svm
from fullrank.evaluation.protocol import Protocols, Scoring
from fullrank.evaluation.score import Comparison, Evaluation, Score
from fullrank.evaluation.spectrum import encoder_spectrum, measure_spectrum
from fullrank.evaluation.task import Task
from fullrank.models.features import Features, extract_features

__all__ = [
    "PROBES", "Comparison", "Evaluation", "FeatureSet", "Features", "OnlineProbe", "Prediction", "Protocols", "Score",
    "Scoring", "Task", "accuracy", "calibrate_batchnorm", "encoder_spectrum", "evaluate", "extract_features",
    "few_shot", "gradient_probe", "knn", "linear_probe", "linear_svm", "measure_spectrum", "raw_pixels", "score_model",
    "standardize",
]  # fmt: skip
