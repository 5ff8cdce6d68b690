"""The images of a set that a model places close together: neighbours, near-duplicates, outliers, doubtful labels and a
map.
"""

from fullrank.evaluation.neighbourhood.duplicates import Duplicate
from fullrank.evaluation.neighbourhood.find import neighbours
from fullrank.evaluation.neighbourhood.result import Neighbours, Queries
from fullrank.evaluation.neighbourhood.search import nearest

__all__ = ["Duplicate", "Neighbours", "Queries", "nearest", "neighbours"]
