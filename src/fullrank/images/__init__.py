"""Where images come from: folders, Parquet files, data sets of the hub and the embedded digits, in memory or as a stream."""

from fullrank.images.dataset_info import DatasetInfo, dataset_info, fits
from fullrank.images.decode import decode
from fullrank.images.decode_error import ImageDecodeError
from fullrank.images.decode_errors import DecodeErrors
from fullrank.images.iterate import Batch, iterate
from fullrank.images.memory import MemoryImages, load
from fullrank.images.order import batch_indices
from fullrank.images.preprocess import Preprocess
from fullrank.images.source import Images
from fullrank.images.source_uri import open_images
from fullrank.images.splits import Splits, hold_out, train_and_test
from fullrank.images.statistics import channel_statistics
from fullrank.images.stream import stream_batches
from fullrank.images.streaming import StreamedImage, StreamedImages, open_stream

__all__ = [
    "Batch",
    "DatasetInfo",
    "DecodeErrors",
    "ImageDecodeError",
    "Images",
    "MemoryImages",
    "Preprocess",
    "Splits",
    "StreamedImage",
    "StreamedImages",
    "batch_indices",
    "channel_statistics",
    "dataset_info",
    "decode",
    "fits",
    "hold_out",
    "iterate",
    "load",
    "open_images",
    "open_stream",
    "stream_batches",
    "train_and_test",
]
