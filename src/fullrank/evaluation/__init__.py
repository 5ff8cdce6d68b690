"""The judgement of frozen backbones: features once, probes on them, baselines beside them, and a probe that learns while training."""

from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.evaluate import PROBES, evaluate, table
from fullrank.evaluation.features import Features, extract, standardize
from fullrank.evaluation.few_shot import FewShot, few_shot
from fullrank.evaluation.frozen import fingerprint, frozen
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_sgd
from fullrank.evaluation.online import OnlineProbe
from fullrank.evaluation.score import Score, score
from fullrank.evaluation.spectrum import measure_spectrum

__all__ = [
    "PROBES",
    "Features",
    "FewShot",
    "OnlineProbe",
    "Score",
    "calibrate_batchnorm",
    "evaluate",
    "extract",
    "few_shot",
    "fingerprint",
    "frozen",
    "knn",
    "linear_probe",
    "linear_probe_sgd",
    "measure_spectrum",
    "raw_pixels",
    "score",
    "standardize",
    "table",
]
