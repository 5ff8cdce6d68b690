"""The collapse monitor of `fullrank pretrain`, for a training loop of your own.

`CollapseMonitor` measures the embeddings of each step, or held-out images. `fullrank.monitor.lightning`,
`fullrank.monitor.transformers` and `fullrank.monitor.torchmetrics` fit it into these libraries.
"""

from fullrank.monitor.collapse_monitor import CollapseMonitor

__all__ = ["CollapseMonitor"]
