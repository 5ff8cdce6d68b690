"""Images from folders, tables, tar shards; the Hugging Face hub and scikit-learn's digits: in memory, on
disk, streamed.
"""

from fullrank.images.dataloaders import Steps, batch_indices, dataloader
from fullrank.images.dataset_info import DatasetInfo, Fingerprint, channel_statistics, dataset_info, find_bit_depth
from fullrank.images.decode import decode
from fullrank.images.decode_errors import DecodeErrors, Decoding, ImageDecodeError
from fullrank.images.load import AnyImages, MemoryImages, MixedSizesError, iterate_batches, load_images
from fullrank.images.memory import as_images
from fullrank.images.preprocess import Preprocess
from fullrank.images.reading import Device, Reading
from fullrank.images.source import Images
from fullrank.images.source_uri import open_images
from fullrank.images.streams import StreamedImages, open_stream
from fullrank.images.train_test import train_and_test

__all__ = [
    "AnyImages", "DatasetInfo", "DecodeErrors", "Decoding", "Device", "Fingerprint", "ImageDecodeError", "Images",
    "MemoryImages", "MixedSizesError", "Preprocess", "Reading", "Steps", "StreamedImages", "as_images", "batch_indices",
    "channel_statistics", "dataloader", "dataset_info", "decode", "find_bit_depth", "iterate_batches", "load_images",
    "open_images", "open_stream", "train_and_test",
]  # fmt: skip
