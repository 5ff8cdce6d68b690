"""The spectrum of embeddings and the metrics that summarise it.

`Moments` are count, mean and scatter of embeddings; those of batches and of processes merge exactly. A `Spectrum` holds the eigenvalues of
the covariance; it is built from embeddings, from `Moments`, or by a `StreamingSpectrum`, which takes one batch after another (`update`) and
returns the `Spectrum` of all (`compute`). `compute_metrics(spectrum)` evaluates the table `METRICS` and returns one `MetricValue` for each
`Metric`: the value, its convention, and a warning if there are too few samples.
"""

from fullrank.spectrum.hypersphere import alignment, uniformity
from fullrank.spectrum.lidar import lidar
from fullrank.spectrum.metrics import METRICS, Metric, MetricValue, compute_metrics
from fullrank.spectrum.moments import Moments
from fullrank.spectrum.power_law import PowerLaw, power_law
from fullrank.spectrum.saturation import count_learned, saturation
from fullrank.spectrum.spectrum import Spectrum, StreamingSpectrum

__all__ = [
    "METRICS",
    "Metric",
    "MetricValue",
    "Moments",
    "PowerLaw",
    "Spectrum",
    "StreamingSpectrum",
    "alignment",
    "compute_metrics",
    "count_learned",
    "lidar",
    "power_law",
    "saturation",
    "uniformity",
]
