"""Evaluation of frozen backbones: features, probes, baselines, and an online probe that is trained together with the
backbone.
"""

from fullrank.evaluation.baselines import calibrate_batchnorm, raw_pixels
from fullrank.evaluation.evaluate import evaluate_backbone
from fullrank.evaluation.features import Features, extract_features, standardize
from fullrank.evaluation.few_shot import FewShot, few_shot, label_fraction
from fullrank.evaluation.frozen import restore_modes, state_hash, verify_frozen
from fullrank.evaluation.knn import knn
from fullrank.evaluation.linear import linear_probe, linear_probe_adam, linear_probe_sgd
from fullrank.evaluation.online import OnlineProbe
from fullrank.evaluation.probes import PROBES
from fullrank.evaluation.result import Comparison, Evaluation, ProbeResult, ProbeScore, topk_accuracy
from fullrank.evaluation.spectrum import encoder_spectrum
from fullrank.evaluation.svm import linear_svm
from fullrank.evaluation.tables import score_tables

__all__ = [
    "PROBES",
    "Comparison",
    "Evaluation",
    "Features",
    "FewShot",
    "OnlineProbe",
    "ProbeResult",
    "ProbeScore",
    "calibrate_batchnorm",
    "encoder_spectrum",
    "evaluate_backbone",
    "extract_features",
    "few_shot",
    "knn",
    "label_fraction",
    "linear_probe",
    "linear_probe_adam",
    "linear_probe_sgd",
    "linear_svm",
    "raw_pixels",
    "restore_modes",
    "score_tables",
    "standardize",
    "state_hash",
    "topk_accuracy",
    "verify_frozen",
]
