"""The spectrum of embeddings and the metrics that summarise it.

`Moments` stores count, mean and scatter of embeddings; moments of batches and processes merge exactly. A `Spectrum`
holds the eigenvalues of the covariance. Embeddings, `Moments` or a `StreamingSpectrum` yield a `Spectrum`;
`StreamingSpectrum.update` takes one batch after another, and `StreamingSpectrum.compute` returns the `Spectrum` of all
embeddings. `compute_metrics(spectrum)` evaluates the table `METRICS` and returns one `MetricValue` per `Metric`: the
value, the convention, and a warning if there are too few samples.
"""

from fullrank.spectrum.hypersphere import alignment, intraclass_correlation, uniformity
from fullrank.spectrum.lidar import lidar
from fullrank.spectrum.metrics import METRICS, Metric, MetricValue, compute_metrics
from fullrank.spectrum.moments import Moments
from fullrank.spectrum.power_law import PowerLaw, power_law
from fullrank.spectrum.saturation import saturation
from fullrank.spectrum.spectrum import Spectrum, StreamingSpectrum

__all__ = [
    "METRICS", "Metric", "MetricValue", "Moments", "PowerLaw", "Spectrum", "StreamingSpectrum", "alignment",
    "compute_metrics", "intraclass_correlation", "lidar", "power_law", "saturation", "uniformity",
]  # fmt: skip
