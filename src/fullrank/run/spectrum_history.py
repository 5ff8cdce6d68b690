"""Read and write the spectrum history of a run, spectrum.npz."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from fullrank.errors import UserError
from fullrank.spectrum import Spectrum

LOCATIONS = ("backbone", "projector")
"""The two outputs whose spectra are measured."""


@dataclass(frozen=True, kw_only=True)
class SpectrumHistory:
    """The eigenvalues of the centred covariance over training, in descending order at each step."""

    steps: Int[np.ndarray, " T"]
    samples: Int[np.ndarray, " T"]
    """Number of images of each spectrum evaluation."""
    eigenvalues: dict[str, Float[np.ndarray, "T _"]]
    """Eigenvalues by location, `backbone`, `projector` or both; their dimensions may differ."""

    @classmethod
    def read(cls, path: Path) -> "SpectrumHistory | None":
        """Read a spectrum.npz; return None if the file is missing or has no spectrum.

        Raises:
            UserError: the file is damaged.
        """
        if not path.exists():
            return None
        remedy = "remove the file and measure with `fullrank spectrum`"
        try:
            with path.open("rb") as file, np.load(file) as arrays:  # np.load(path) would leave a damaged file open
                found = {name: arrays[name] for name in ("steps", "samples", *LOCATIONS) if name in arrays.files}
            steps, samples = found.pop("steps").astype(np.int64), found.pop("samples").astype(np.int64)
        except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} cannot be read ({error}); {remedy}") from error
        for name, array in {"samples": samples, **found}.items():
            if len(array) != len(steps):
                what = "sample counts" if name == "samples" else f"{name} spectra"
                raise UserError(f"{path} is damaged: it has {len(steps)} steps, but {len(array)} {what}; {remedy}")
        return cls(steps=steps, samples=samples, eigenvalues=found) if len(steps) and found else None


class SpectrumFile:
    """Writes spectrum.npz. Each append rewrites the file atomically, so that a reader always finds a complete file.

    Args:
        path: the file.
        after: on resume, remove the spectra of later steps.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self._path = path
        self._rows: list[dict[str, np.ndarray]] = []
        if history := SpectrumHistory.read(path):
            arrays = {"steps": history.steps, "samples": history.samples, **history.eigenvalues}
            self._rows = [{name: values[t] for name, values in arrays.items()} for t in np.flatnonzero(history.steps <= after)]

    def append(self, step: int, spectra: Mapping[str, Spectrum]) -> None:
        """Add the eigenvalues of one spectrum evaluation, by location."""
        row = {"steps": np.array(step), "samples": np.array(min(s.n for s in spectra.values()))}
        row |= {name: np.asarray(s.eigenvalues.cpu(), dtype=np.float32) for name, s in spectra.items()}
        self._rows.append(row)
        draft = self._path.with_name(".spectrum.draft.npz")
        np.savez(draft, **{name: np.stack([row[name] for row in self._rows]) for name in row})  # pyright: ignore[reportArgumentType]
        draft.replace(self._path)
