"""Rank models on images without labels, with intervals, and see whether labels agree with the order."""

from fullrank.choosing.choose import choose
from fullrank.choosing.labelled import LabelledOrder
from fullrank.choosing.measures import MEASURES, Measure
from fullrank.choosing.result import Candidate, Choice

__all__ = ["MEASURES", "Candidate", "Choice", "LabelledOrder", "Measure", "choose"]
