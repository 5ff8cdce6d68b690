import numpy as np
import pytest
import torch

from fullrank.errors import UserError
from fullrank.run import SpectrumHistory, spectrum_history
from fullrank.run.spectrum_history import SpectrumFile
from fullrank.spectrum import Spectrum


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spectrum.npz"


def spectra(scale):
    return {
        "backbone": Spectrum.from_eigenvalues(scale * torch.tensor([3.0, 2.0, 1.0]), n=50),
        "projector": Spectrum.from_eigenvalues(scale * torch.tensor([1.0, 0.5]), n=50),
    }


def test_spectra_can_be_read_after_each_append(path):
    assert SpectrumHistory.read(path) is None
    file = SpectrumFile(path)
    for count, step in enumerate((0, 10, 20), start=1):
        file.append(step, spectra(1 + step))
        history = SpectrumHistory.read(path)
        assert history.steps.tolist() == [0, 10, 20][:count]
        assert history.samples.tolist() == [50] * count
        assert [history.eigenvalues[name].shape for name in ("backbone", "projector")] == [(count, 3), (count, 2)]
        np.testing.assert_allclose(history.eigenvalues["backbone"][-1], [3 * (1 + step), 2 * (1 + step), 1 + step])
        assert [entry.name for entry in path.parent.iterdir()] == ["spectrum.npz"]


def test_on_resume_later_spectra_are_removed(path):
    file = SpectrumFile(path)
    for step in (0, 10, 20, 30):
        file.append(step, spectra(1.0))
    SpectrumFile(path, after=15).append(20, spectra(7.0))
    history = SpectrumHistory.read(path)
    assert history.steps.tolist() == [0, 10, 20]
    np.testing.assert_allclose(history.eigenvalues["projector"][:, 0], [1, 1, 7])


def test_arrays_of_different_lengths_are_an_error(path):
    np.savez(path, steps=np.arange(3), samples=np.full(3, 9), backbone=np.ones((2, 5)))
    with pytest.raises(UserError, match="backbone is float64 of shape"):
        SpectrumHistory.read(path)


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"garbage"])
def test_a_damaged_file_is_named(path, damage):
    rows = np.random.default_rng(0).random((50, 9), np.float32)
    np.savez_compressed(path, steps=np.arange(50), samples=np.full(50, 9), backbone=rows)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"^{path} cannot be read .*remove the file"):
        SpectrumHistory.read(path)


def test_a_device_and_a_file_that_expands_too_much_are_refused(path, monkeypatch):
    path.symlink_to("/dev/null")
    with pytest.raises(UserError, match="device"):
        SpectrumHistory.read(path)
    path.unlink()
    np.savez_compressed(path, steps=np.arange(1000), samples=np.arange(1000), backbone=np.zeros((1000, 9)))
    assert len(SpectrumHistory.read(path).steps) == 1000
    monkeypatch.setattr(spectrum_history, "MAX_BYTES", 10_000)
    with pytest.raises(UserError, match="more than"):
        SpectrumHistory.read(path)
