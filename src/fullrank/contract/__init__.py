"""What every objective promises, as code that examines any function: the library's own pass through it, and so can yours."""

from fullrank.contract.check import CHECKS, Measured, Report, check, examine
from fullrank.contract.exactness import Exactness, exactness
from fullrank.contract.finding import Finding
from fullrank.contract.free import Free, free
from fullrank.contract.subject import Subject, subject_of

__all__ = ["CHECKS", "Exactness", "Finding", "Free", "Measured", "Report", "Subject", "check", "exactness", "examine", "free", "subject_of"]
