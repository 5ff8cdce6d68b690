"""The images of a set that a model places close together: neighbours, near-duplicates, outliers, doubtful labels and a map."""

from fullrank.neighbourhood.duplicates import Duplicate
from fullrank.neighbourhood.find import neighbours
from fullrank.neighbourhood.result import Neighbours, Queries
from fullrank.neighbourhood.search import nearest

__all__ = ["Duplicate", "Neighbours", "Queries", "nearest", "neighbours"]
