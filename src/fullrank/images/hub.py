"""Data sets of the Hugging Face hub."""

import os
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub.constants import HF_HUB_CACHE

from fullrank.errors import UserError
from fullrank.images.parquet import CACHE, first_line
from fullrank.images.reading import Reading
from fullrank.images.source import Images
from fullrank.images.table import table_splits


def open_hub(source: str, name: str, reading: Reading) -> dict[str, Images]:
    """Return the images of each split of a data set of the hub.

    Files that the rows name are read only in the copy of the data set and in what it unpacked.
    """
    repository = name.partition(":")[0].replace("/", "--")
    roots = tuple(map(os.path.realpath, (f"{HF_HUB_CACHE}/datasets--{repository}", f"{CACHE}/downloads")))
    return table_splits(source, load_from_hub(name), roots=roots, reading=reading)


def load_from_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` if a data set has several configurations. Its code is never run.

    Raises:
        UserError: the data set or configuration does not exist, access is denied, or there is neither a network nor a
            cached copy.
    """
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, **options)
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise UserError(
            f"cannot load 'hf:{name}' ({first_line(error)}); check hf:OWNER/NAME, with :CONFIG if there are several "
            "configurations, your access (`hf auth login`) and the network, or give local files as parquet:PATH"
        ) from error
