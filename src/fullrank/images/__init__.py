"""Where images come from: folders, Parquet files, data sets of the hub and the embedded digits, in memory or as a stream."""

from fullrank.images.arrivals import Arrival, StreamedImages, open_stream
from fullrank.images.bad import BadImage
from fullrank.images.decode import decode
from fullrank.images.grammar import open_images
from fullrank.images.iterate import Batch, iterate
from fullrank.images.memory import MemoryImages, load
from fullrank.images.order import batch_indices
from fullrank.images.preprocess import Preprocess
from fullrank.images.skipped import Skipped
from fullrank.images.source import Images
from fullrank.images.splits import Splits, hold_out, train_and_test
from fullrank.images.statistics import channel_statistics
from fullrank.images.stream import stream_batches
from fullrank.images.survey import Survey, fits, survey

__all__ = [
    "Arrival",
    "BadImage",
    "Batch",
    "Images",
    "MemoryImages",
    "Preprocess",
    "Skipped",
    "Splits",
    "StreamedImages",
    "Survey",
    "batch_indices",
    "channel_statistics",
    "decode",
    "fits",
    "hold_out",
    "iterate",
    "load",
    "open_images",
    "open_stream",
    "stream_batches",
    "survey",
    "train_and_test",
]
