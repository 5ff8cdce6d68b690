"""Fixtures: a small run of a few seconds, the comparison of two runs, and helpers that start processes."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

# Before torch, and for the processes of a test: one thread, because the order of a sum is part of its bits, and a CPU
# on which 'auto' is float32.
os.environ |= {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}

import numpy as np
import pytest
import torch
from rich.console import Console

sys.path.append(str(Path(__file__).parent))  # for this folder's process_group.py and small.py

from process_group import in_float64, run_script


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def randn(rng):
    """`randn(*shape)`: standard normal numbers in double precision, always the same sequence."""
    return lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.fixture
def orthonormal(randn):
    """`orthonormal(n, D)`: a matrix with centred, orthonormal columns."""
    return lambda n, D: torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), randn(n, D)], 1)).Q[:, 1:]


@pytest.fixture
def double_precision():
    """Float64 by default, and a fixed seed."""
    with in_float64():
        yield


@pytest.fixture
def untyped():
    """Switch the shape checks of the tests off, as for users, to reach the error messages behind them."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


TIMES = {"images_per_second"}  # different in each run


@pytest.fixture(scope="session")
def small():
    """A recipe of 22 steps on the digits, which takes seconds on one core."""
    from fullrank.recipes import SpectrumConfig
    from small import small_recipe

    spectrum = SpectrumConfig(samples=100, train_batch_every=5)
    return small_recipe(checkpoints=4, keep_checkpoints=-1, spectrum=spectrum)


@pytest.fixture(scope="session")
def run(small, tmp_path_factory):
    """The run of `small`. A test that changes its files uses `copy`."""
    from fullrank import pretrain

    return pretrain(small, out=tmp_path_factory.mktemp("runs") / "small", console=Console(quiet=True))


@pytest.fixture
def copy(run, tmp_path):
    """The path of a copy of `run`."""
    return Path(shutil.copytree(run.path, tmp_path / "copy"))


class PowerCut(BaseException):
    """Raised to end the run like a killed process."""


@pytest.fixture
def power_cut(monkeypatch):
    """`with power_cut(after=7):` ends the run inside after that step, with its log and the checkpoint that is due, and
    without another."""
    from fullrank.run.logger import RunLogger

    after_step = RunLogger.after_step

    @contextmanager
    def cut_after(*, after):
        def cut(self, step, **keywords):
            after_step(self, step, **keywords)
            if step.step == after:
                raise PowerCut

        with monkeypatch.context() as patch:
            patch.setattr(RunLogger, "after_step", cut)
            with pytest.raises(PowerCut):
                yield

    return cut_after


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """`train(recipe, path=None)`: the run of a recipe, without output."""
    from fullrank import pretrain

    def train_quietly(recipe, path=None):
        return pretrain(recipe, out=path or tmp_path_factory.mktemp("runs") / "run", console=Console(quiet=True))

    return train_quietly


@pytest.fixture(scope="session")
def assert_same_but_scores():
    """`assert_same_but_scores(one, other)`: two runs differ only in the scores of a probe during training, bit for
    bit."""

    def rows(run):
        return [row for row in timeless(run) if row["kind"] != "online"]

    def same(one, other):
        first, second = one.checkpoint(), other.checkpoint()
        assert equal(first.weights(), second.weights())
        assert equal(first.state()["probe"], second.state()["probe"])
        assert rows(one) == rows(other)

    return same


@pytest.fixture(scope="session")
def assert_same():
    """`assert_same(one, other)`: two run directories hold the same run, bit for bit, except for durations."""

    def same(one, other):
        from fullrank.run import Run

        one, other = Run(Path(one)), Run(Path(other))
        assert one.checkpoint().step == other.checkpoint().step
        assert equal(one.checkpoint().weights(), other.checkpoint().weights())
        assert equal(one.checkpoint().state(), other.checkpoint().state())
        assert timeless(one) == timeless(other)
        assert equal(scalars(one.path), scalars(other.path))
        assert arrays(one.path / "spectrum.npz") == arrays(other.path / "spectrum.npz")

    return same


@pytest.fixture(scope="session", autouse=True)
def _forked_processes():
    """Fork the processes of a run from a server that imports the library once; the tests of torchrun and of killed runs
    start new ones."""
    from fullrank.run import processes

    processes.LaunchConfig = partial(processes.LaunchConfig, start_method="forkserver")
    multiprocessing.set_forkserver_preload(["fullrank.run.pretrain"])


@pytest.fixture(scope="session")
def together(tmp_path_factory):
    """`together(script, world)`: what `main(fabric)` of the script returns in each of several processes."""
    from fullrank.images.parallel import process_context

    def run_together(script, world=2):
        folder = tmp_path_factory.mktemp("together")
        with ProcessPoolExecutor(world, mp_context=process_context()) as pool:
            for done in [pool.submit(run_script, script, rank, world, folder) for rank in range(world)]:
                done.result()
        return [torch.load(folder / f"{rank}.pt") for rank in range(world)]

    return run_together


@pytest.fixture(scope="session")
def start():
    """`start("digits", …)`: start `fullrank pretrain …` in a new process; `by` precedes the name of the module."""

    def start_process(*arguments, by=()):
        command = [sys.executable, *by, "-m", "fullrank", "pretrain", *map(str, arguments)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    return start_process


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of 60 pictures, PNG and JPEG, of two sizes and in two classes."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("data") / "photos"
    rng = np.random.default_rng(0)
    for k in range(60):
        path = folder / ("cat", "dog")[k % 2] / f"{k:02}.{('png', 'jpg')[k % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, (24, 32)[k % 5 == 0], 3), dtype=np.uint8)).save(path)
    return folder


def arrays(path):
    """Name → bytes of each array of an .npz file."""
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


def timeless(run):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics.to_dicts()]


def equal(one, other):
    """Whether nested dicts and lists are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def scalars(path):
    """The scalars of TensorBoard's event files: name → (step, value) pairs, without durations."""
    from small import read_events

    return {name: pairs for name, pairs in read_events(path).items() if name not in TIMES}


@pytest.fixture
def recipe_json(run, tmp_path):
    """A copy of the small run's recipe, as a file."""
    return shutil.copy(run.path / "recipe.json", tmp_path / "small.json")
