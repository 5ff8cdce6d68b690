"""Rank models on images without labels, with intervals, and see whether labels agree with the order."""

from fullrank.evaluation.choosing.choose import choose
from fullrank.evaluation.choosing.labelled import LabelledOrder
from fullrank.evaluation.choosing.measures import MEASURES, Measure
from fullrank.evaluation.choosing.result import Candidate, Choice

__all__ = ["MEASURES", "Candidate", "Choice", "LabelledOrder", "Measure", "choose"]
