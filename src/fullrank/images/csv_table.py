"""Read a table of paths from a CSV file: one row for each image, with columns for its path and for what is known of
it.
"""

import os
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from fullrank.errors import UserError, printable
from fullrank.images.columns import Rows
from fullrank.images.files import check_regular
from fullrank.images.folder import EXTENSIONS
from fullrank.images.parquet import first_line


def read_csv(path: str | Path, *, texts: Collection[str] = ()) -> Rows:
    """Read a CSV file whose first line has the names of the columns. An empty cell is null.

    The delimiter is the most frequent of comma, semicolon and tab in the first line; in a `.tsv` file it is the tab.

    Args:
        path: the file.
        texts: columns that are read as text, so that the number 007 differs from 7.

    Raises:
        UserError: the file cannot be read, is no UTF-8 table, has no rows, or names a column twice.
    """
    try:
        check_regular(os.stat(path))
        with open(path, "rb") as file:
            head = file.readline(2**20)
        delimiter = (
            "\t" if Path(path).suffix.lower() == ".tsv" else max(",;\t", key=lambda mark: head.count(mark.encode()))
        )
        table = pc.read_csv(
            path,
            parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pc.ConvertOptions(
                column_types={name: pa.string() for name in texts},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"cannot read the table '{path}': {printable(reason)}; give a CSV file in UTF-8 with one line for each image"
        ) from error
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"the table '{path}' has several columns '{printable(twice[0])}', expected one name for each; rename them"
        )
    if image := next((name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS), None):
        received = f"the first line of the table '{path}' has an image, '{printable(image)}'"
        raise UserError(f"{received}, expected the names of the columns; add a line such as path,label above it")
    if not table.num_rows:
        raise UserError(
            f"the table '{path}' has no rows, expected a line with the names of the columns and one line for each image"
        )
    return Rows(table)
