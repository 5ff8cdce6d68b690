"""Read and write the spectrum history of a run, spectrum.npz."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from fullrank.errors import UserError
from fullrank.files import atomic_write, check_file
from fullrank.spectrum import Spectrum

# The two outputs whose spectra are measured.
LOCATIONS = ("backbone", "projector")
# Limit for the expanded arrays of a file: an untrusted file of a few kilobytes may expand to any size.
MAX_BYTES = 2**31


@dataclass(frozen=True, kw_only=True)
class SpectrumHistory:
    """The eigenvalues of the centred covariance over training, in descending order at each step.

    Attributes:
        samples: Number of images of each spectrum. The first and the last have ten per dimension, or all there are;
            if the others have fewer, there is one with as few at these steps too.
        eigenvalues: Eigenvalues by location, `backbone`, `projector` or both; their dimensions may differ.
    """

    steps: Int[np.ndarray, " T"]
    samples: Int[np.ndarray, " T"]
    eigenvalues: dict[str, Float[np.ndarray, "T _"]]

    @classmethod
    def read(cls, path: Path) -> "SpectrumHistory | None":
        """Read a spectrum.npz; return None if the file is missing or has no spectrum.

        Raises:
            UserError: the file is damaged.
        """
        if not os.path.lexists(path):
            return None
        try:
            check_file(path)
            with path.open("rb") as file, np.load(file) as arrays:  # np.load(path) would leave a damaged file open
                if sum(member.file_size for member in arrays.zip.infolist()) > MAX_BYTES:
                    raise ValueError(f"its arrays have more than {MAX_BYTES // 2**30} GiB")
                found = {name: arrays[name] for name in ("steps", "samples", *LOCATIONS) if name in arrays.files}
            for name, array in found.items():
                ndim, kinds = (2, "f") if name in LOCATIONS else (1, "iu")
                if array.ndim != ndim or array.dtype.kind not in kinds or len(array) != len(found["samples"]):
                    raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
            steps, samples = (found.pop(name).astype(np.int64) for name in ("steps", "samples"))
        except Exception as error:  # numpy and zipfile raise many types for a damaged file
            text = f"{path} cannot be read ({next(iter(str(error).splitlines()), type(error).__name__)})"
            raise UserError(f"{text}; remove the file and measure with `fullrank spectrum`") from error
        return cls(steps=steps, samples=samples, eigenvalues=found) if len(steps) and found else None

    def comparable(self) -> "SpectrumHistory":
        """Return the spectra that rest on the most frequent number of images: small eigenvalues depend on it."""
        return self._rows(self.samples == np.bincount(self.samples).argmax())

    def fullest(self) -> "SpectrumHistory":
        """Return the spectrum of each step that rests on the most images."""
        return self._rows(self.samples == [self.samples[self.steps == step].max() for step in self.steps])

    def _rows(self, rows: np.ndarray) -> "SpectrumHistory":
        eigenvalues = {location: values[rows] for location, values in self.eigenvalues.items()}
        return SpectrumHistory(steps=self.steps[rows], samples=self.samples[rows], eigenvalues=eigenvalues)


class SpectrumFile:
    """Writes spectrum.npz. Each append rewrites the file atomically, so that a reader always finds a complete file.

    Args:
        path: the file.
        after: on resume, remove the spectra of later steps.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self._path, self._arrays = path, dict[str, np.ndarray]()
        if history := SpectrumHistory.read(path):
            arrays = {"steps": history.steps, "samples": history.samples, **history.eigenvalues}
            self._arrays = {name: values[history.steps <= after] for name, values in arrays.items()}

    def append(self, step: int, spectra: Mapping[str, Spectrum]) -> None:
        """Add the eigenvalues of one spectrum evaluation, by location."""
        row = {"steps": np.array(step), "samples": np.array(min(s.n for s in spectra.values()))}
        row |= {name: np.asarray(s.eigenvalues.cpu(), dtype=np.float32) for name, s in spectra.items()}
        before = self._arrays or {name: value[None][:0] for name, value in row.items()}
        try:
            self._arrays = {name: np.concatenate([before[name], value[None]]) for name, value in row.items()}
        except (KeyError, ValueError) as error:
            what = f"{self._path} has other spectra than this run ({error})"
            raise UserError(f"{what}; remove the file, then resume") from error
        with atomic_write(self._path, overwrite=True) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **self._arrays)
