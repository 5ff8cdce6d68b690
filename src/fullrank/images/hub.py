"""Data sets of the Hugging Face hub; code of theirs is never run (`datasets` has no such option any more)."""

from typing import Any

import datasets
from datasets import config as settings
from datasets.exceptions import DatasetNotFoundError, DatasetsError

from fullrank.errors import UserError
from fullrank.images.table import first_line


def load_hub(name: str, **options: Any) -> Any:
    """Load `OWNER/NAME`, or `OWNER/NAME:CONFIG` where a data set has several configurations.

    Raises:
        UserError: no such data set, no access, no network and no cached copy, or a configuration to choose.
    """
    path, _, config = name.partition(":")
    try:
        return datasets.load_dataset(path, config or None, **options)
    except DatasetNotFoundError as error:
        raise UserError(
            f"no data set '{path}' on the Hugging Face hub, or no access to it; check hf:OWNER/NAME, or log in with `hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"cannot reach the Hugging Face hub for '{path}', and {settings.HF_DATASETS_CACHE} holds no copy; "
            "load it once with a network, or give local files as parquet:PATH"
        ) from error
    except (ValueError, RuntimeError, OSError, DatasetsError) as error:
        raise UserError(
            f"cannot load 'hf:{name}': {first_line(error)}; choose a configuration with hf:OWNER/NAME:CONFIG, "
            "or give local files as parquet:PATH"
        ) from error
