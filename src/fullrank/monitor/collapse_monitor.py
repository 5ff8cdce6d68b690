"""Measure the spectrum of embeddings in anyone's training loop, and warn of collapse."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, RandomSampler

from fullrank.distributed import all_gather_object, gather, rank, world_size
from fullrank.errors import NotFiniteError, UserError, explain_errors
from fullrank.evaluation import encoder_spectrum
from fullrank.files import write_json
from fullrank.models.features import eval_mode
from fullrank.nn.loss import Embeddings, Loss
from fullrank.objectives.signature import hyperparameters
from fullrank.run.collapse_detector import CollapseDetector, compute_burn_in_end
from fullrank.run.directory import RECIPE, create_run, is_run
from fullrank.run.environment import platform_info
from fullrank.run.metrics import Metrics, MetricsWriter, scalars
from fullrank.run.rows import AlarmRow, Row, SpectrumMetrics, SpectrumRow, TrainRow
from fullrank.run.spectrum_history import LOCATIONS, SpectrumFile
from fullrank.run.terminal import stderr
from fullrank.spectrum import Spectrum, StreamingSpectrum, intraclass_correlation
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION
from fullrank.spectrum.moments import check_embeddings

EVALUATIONS = 50  # by default, over the training
LossLike = float | Tensor | Mapping[str, float | Tensor] | Loss
MIN_SAMPLES_SHARE = 0.9  # of the evaluation before


class CollapseMonitor:
    """Measures the spectrum of representations and embeddings during training, and warns of collapse, without labels.

        monitor = CollapseMonitor(steps=10_000, out="runs/mine")
        for step in range(10_000):
            ...                                          # forward, backward, optimizer.step()
            monitor.step(loss, R, Z)                     # prints an alarm where there is one, and returns it
        monitor.close()

    The spectrum is that of the embeddings of the last steps before an evaluation, until there are ten for each
    dimension; with fewer than before, as at the end of a training, there is none. The weights change a little in the
    meantime, and the augmentation counts. Held-out images tell more, and are measured with the same weights, in eval
    mode, at the start and at each evaluation:

        monitor = CollapseMonitor(steps=10_000, held_out=loader, backbone=backbone, projector=projector)
        monitor.step(loss)                               # in the loop

    With several processes, each has a monitor, and calls the same methods: the spectrum is that of all embeddings and
    the loss the mean. The first process writes and prints; all return the same alarms.

    With `out`, the folder becomes a run that `fullrank report` shows: `metrics.jsonl`, TensorBoard, the spectra.

    Attributes:
        alarms: All alarms so far.

    Args:
        steps: number of optimizer steps of the training.
        held_out: batches of images without augmentation, iterated at each evaluation: (n, C, H, W), or tuples that
            begin with them, normalised as in training. The same on each process: each loads all batches, and embeds its
            share.
        backbone: of `held_out`, images to representations R (n, D_b); a feature map is averaged, and of a Hugging Face
            model the pooled output counts.
        projector: representations to embeddings Z (n, D), or the network whose output the loss takes; None: there is
            none.
        every: steps between two evaluations; None: a fiftieth of all.
        epochs: number of epochs of the training, for the log.
        warmup: number of steps of the learning rate's warm-up, from which `compute_burn_in_end` has the first step of
            most alarms.
        log_every: steps between two rows of the loss.
        out: folder of the log; None: none.
        start: number of steps already taken, if the training is continued; later rows are removed from the log.
        log: called with the numbers of each row by name, and the step: `wandb.log`, `trackio.log`.
        about: settings of the training, as JSON, for the report.

    Raises:
        UserError: `out` holds other files, a number is below 1, or the held-out images cannot be embedded.
    """

    def __init__(
        self,
        *,
        steps: int,
        held_out: Iterable[Any] | None = None,
        backbone: nn.Module | None = None,
        projector: nn.Module | None = None,
        every: int | None = None,
        epochs: float = 1.0,
        warmup: int = 0,
        log_every: int = 10,
        out: str | Path | None = None,
        start: int = 0,
        log: Callable[..., Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        every = max(steps // EVALUATIONS, 1) if every is None else every
        for name, number in (("steps", steps), ("every", every), ("log_every", log_every)):
            if number < 1:
                raise UserError(f"{name} is {number}, expected 1 or more")
        if (held_out is None) != (backbone is None) or (backbone is None and projector is not None):
            raise UserError("got a part of held_out, backbone and projector, expected the first two, or none of them")
        sampler = getattr(held_out, "sampler", None)
        shuffled = isinstance(sampler, RandomSampler) and world_size() > 1  # in another order on each process
        if isinstance(held_out, Iterator) or isinstance(sampler, DistributedSampler) or shuffled:
            expected = "expected a list of batches, or a DataLoader that is the same on each process"
            raise UserError(
                f"held_out is an iterator, which ends, has a DistributedSampler, or is shuffled; {expected}"
            )
        self.alarms: list[AlarmRow] = []
        self._steps, self._every, self._log_every, self._step, self._epochs = steps, every, log_every, start, epochs
        self._log, self._held_out, self._streams = log, None, dict[str, StreamingSpectrum]()
        if held_out is not None and backbone is not None:
            self._held_out = partial(embed_held_out, held_out, backbone, projector)
        spectra = self._held_out() if self._held_out else None  # an error comes before the training
        images = "held-out images" if self._held_out else "images of the last steps"
        burn_in_end = compute_burn_in_end(steps=steps, warmup=warmup)
        self._detector = CollapseDetector(burn_in_end, images=images, weights_known=False)
        self._writer, self._spectra, self._samples = None, None, 0
        problem = ""
        if out is not None and rank() == 0:
            try:
                self._open(Path(out), dict(about or {}), start)
            except UserError as error:
                problem = str(error)
        problem, self.alarms, self._samples = all_gather_object((problem, self.alarms, self._samples))[0]
        if problem:
            raise UserError(problem)
        if spectra and not start:
            self._write_spectra(spectra)

    def _open(self, out: Path, about: dict[str, Any], start: int) -> None:
        """Create the folder, or go on with its log."""
        kept: list[Row] = []
        if start and (out / RECIPE).exists():
            kept = [row for row in Metrics.read(out / "metrics.jsonl") if row.step <= start]
        else:
            if is_run(out):
                raise UserError(
                    f"'{out}' already contains a run; give another folder, or start=… to go on with its log"
                )
            create_run(out, out.name)
            write_json(out / RECIPE, {"name": out.name} | about)
            write_json(out / "environment.json", platform_info() | {"monitored": True})
        for row in kept:
            self._detector.update(row)
            self._samples = row.backbone.samples if isinstance(row, SpectrumRow) else self._samples
        self.alarms = [row for row in kept if isinstance(row, AlarmRow)]
        self._writer = MetricsWriter(out, kept, wandb=False, config={})
        self._spectra = SpectrumFile(out / "spectrum.npz", after=start or -1)

    def step(
        self,
        loss: LossLike | None = None,
        R: Embeddings | None = None,
        Z: Embeddings | None = None,
        *,
        lr: float | None = None,
    ) -> list[AlarmRow]:
        """Count an optimizer step, and return the alarms that it raises for the first time.

        Args:
            loss: the loss of this step, its weighted terms by name, or the `Loss` itself, whose terms and weights tell
                the cause of an alarm; None: it is not logged.
            R: representations (n, D_b) of one view of this step's images; of several (V, n, D_b), or a sequence of
                them, whose intraclass correlation is measured; without `held_out` only.
            Z: embeddings of the same form.
            lr: the learning rate, for the log.

        Raises:
            UserError: there are neither representations nor held-out images, or both; a tensor has another form.
        """
        if (R is None) == (self._held_out is None) or (R is None and Z is not None):
            got = "representations and held_out" if self._held_out else "neither representations nor held_out"
            raise UserError(f"got {got}, expected one: monitor.step(loss, R, Z), or CollapseMonitor(held_out=…)")
        R, Z = (torch.stack([*X]) if isinstance(X, Sequence) else X for X in (R, Z))
        self._step, before = self._step + 1, len(self.alarms)
        ahead = self._steps - self._step
        if loss is not None and (self._step % self._log_every == 0 or self._step == 1 or ahead == 0):
            self.log_loss(loss, lr=lr)
        left = min(-self._step % self._every, ahead if ahead >= 0 else math.inf)
        for name, X in (("backbone", R), ("projector", Z)):
            if X is not None:
                view = X[0] if X.ndim == 3 else X
                check_embeddings(view)
                if left * len(view) * world_size() < SAMPLES_PER_DIMENSION * view.shape[1]:
                    self._streams.setdefault(name, StreamingSpectrum()).update(view)
        if left == 0:
            self._evaluate(R)
        return self.alarms[before:]

    def log_loss(self, loss: LossLike, *, lr: float | None = None) -> None:
        """Log the loss of the last step, or its terms; `step` does so at the first, last and every `log_every`-th."""
        if isinstance(loss, Loss):
            if not loss.terms:
                raise UserError(f"Loss({loss.name!r}) has no terms yet; call it before monitor.step")
            self._detector.recipe = {"objective": loss.name, "hyper": hyperparameters(loss.objective)}
            loss = loss.terms
        named = loss if isinstance(loss, Mapping) else {"loss": loss}
        numbers = all_gather_object([float(x.detach() if isinstance(x, Tensor) else x) for x in named.values()])
        terms = {name: sum(each) / len(each) for name, each in zip(named, zip(*numbers, strict=True), strict=True)}
        if math.isfinite(total := sum(terms.values())):
            self._write(TrainRow(step=self._step, epoch=self._epoch, loss=total, terms=terms, lr=lr))
        else:
            self._not_finite("loss", f"the loss is {total} at step {self._step}")

    def _evaluate(self, R: Tensor | None) -> None:
        """Log the spectra of the held-out images, or of the embeddings in the streams, which begin again."""
        streams, self._streams = self._streams, {}
        try:
            if self._held_out:
                spectra = self._held_out()
            else:
                spectra = {name: stream.compute() for name, stream in streams.items()}
        except NotFiniteError:
            return self._not_finite("embeddings", f"the embeddings have NaN or infinite values at step {self._step}")
        n, before = spectra["backbone"].n, self._samples
        if n < MIN_SAMPLES_SHARE * before:  # their rank would be lower only because they are fewer
            return None
        correlation = None
        if R is not None and R.ndim == 3 and len({*all_gather_object(R.shape)}) == 1:
            correlation = intraclass_correlation(gather(R.detach()))
        self._write_spectra(spectra, intraclass_correlation=correlation)

    def _write_spectra(self, spectra: dict[str, Spectrum], **fields: Any) -> None:
        self._samples = spectra["backbone"].n
        metrics = {name: SpectrumMetrics.from_spectrum(spectrum) for name, spectrum in spectra.items()}
        metrics.setdefault("projector", metrics["backbone"])
        if self._spectra:
            self._spectra.append(self._step, {name: spectra.get(name, spectra["backbone"]) for name in LOCATIONS})
        self._write(SpectrumRow(step=self._step, epoch=self._epoch, **metrics, **fields))

    def _not_finite(self, where: str, text: str) -> None:
        if not any(alarm.alarm == "not finite" for alarm in self.alarms):
            self._raise(self._detector.not_finite(self._step, self._epoch, where, text))

    @property
    def _epoch(self) -> float:
        return self._epochs * self._step / self._steps

    def _write(self, row: Row) -> None:
        """Log a row, and the alarms that it raises: on each process those of the first one, which has the whole log."""
        if self._writer:
            self._writer.write(row)
        if self._log and rank() == 0:
            self._log(scalars(row), step=row.step)
        for alarm in all_gather_object(self._detector.update(row))[0]:
            self._raise(alarm)

    def _raise(self, alarm: AlarmRow) -> None:
        # Flags and files of `fullrank pretrain` are in parentheses; the flag of a weight becomes its name.
        alarm = replace(alarm, remedy=re.sub(r" \((--|views\.png)[^)]*\)|--hyper\.", "", alarm.remedy))
        self.alarms.append(alarm)
        if self._writer:
            self._writer.write(alarm)
        if self._log and rank() == 0:
            self._log({f"alarm/{alarm.where}": 1.0}, step=alarm.step)
        if rank() == 0:
            stderr().print(f"warning at step {alarm.step}: {alarm.message}; {alarm.remedy}", style="yellow")

    def close(self) -> None:
        """Close the log."""
        if self._writer:
            self._writer.close()
            self._writer = self._spectra = None


def pooled(output: Any) -> Tensor:
    """Return the output of a network as (n, D): the pooled output of a Hugging Face model; a feature map is averaged.

    Raises:
        UserError: the output is not a tensor (n, D) or (n, D, H, W), and has no `pooler_output`.

    >>> pooled(torch.ones(2, 8, 3, 3)).shape, pooled(torch.ones(2, 8)).shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    """
    if getattr(output, "pooler_output", output) is None:
        raise UserError("the pooler_output of the backbone is None; wrap it in a module that returns (n, D)")
    output = getattr(output, "pooler_output", output)
    if isinstance(output, Tensor) and output.ndim in (2, 4):
        return output.mean((2, 3)) if output.ndim == 4 else output
    found = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    raise UserError(f"the backbone returns {found}, expected (n, D) or (n, D, H, W); wrap it in a module that does")


def embed_held_out(images: Iterable[Any], backbone: nn.Module, projector: nn.Module | None) -> dict[str, Spectrum]:
    """Return the spectra of the embeddings of all processes, in eval mode; modes and random numbers stay as they are.

    Raises:
        UserError: there are no images, the form of a batch or an output is wrong, or an embedding is not finite.
    """
    backbone, projector = _without_ddp(backbone), _without_ddp(projector)
    like = next(backbone.parameters(), torch.empty(0))
    networks = [backbone] if projector is None else [backbone, projector]
    with torch.no_grad(), torch.random.fork_rng([]), ExitStack() as stack:
        for network in networks:
            stack.enter_context(eval_mode(network))
        share = islice(images, rank(), None, world_size())
        if world_size() > 1:
            first = [*islice(share, 1)]
            if not all(all_gather_object(len(first))):
                found = f"held_out has fewer batches than there are processes ({world_size()})"
                raise UserError(f"{found}; expected at least one for each, for example of smaller batches")
            share = chain(first, share)
        batches = (pooled(backbone(_images(batch).to(like))) for batch in share)
        with explain_errors("the networks cannot take held_out", "resize and normalise them as in training"):
            return encoder_spectrum(batches, projector, synchronize=True)


def _images(batch: Any) -> Tensor:
    if isinstance(batch, Mapping):
        batch = batch.get("pixel_values")
    images = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    if isinstance(images, Tensor) and images.is_floating_point():
        return images
    found = images.dtype if isinstance(images, Tensor) else f"a {type(images).__name__}"
    expected = "floating-point images (n, C, H, W) as in training, tuples that begin with them, or their pixel_values"
    raise UserError(f"held_out yields {found}, expected {expected}")


def find_networks(model: nn.Module, backbone: str, projector: str) -> dict[str, nn.Module]:
    """Return the submodules of a model by the names of the parts that they are; projector "": there is none.

    Raises:
        UserError: the model has no such submodule.

    >>> list(find_networks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "0", "1"))
    ['backbone', 'projector']
    """
    try:
        found = {"backbone": model.get_submodule(backbone)}
        return found | ({"projector": model.get_submodule(projector)} if projector else {})
    except AttributeError as error:
        known = ", ".join(f"'{name}'" for name, _ in model.named_children())
        raise UserError(f"{error}; name submodules of the model for backbone and projector: {known}") from None


def _without_ddp(network: Any) -> Any:
    """Return the network itself: a forward pass of DistributedDataParallel waits for the other processes."""
    inner = getattr(network, "_orig_mod", network)  # below torch.compile
    return inner.module if isinstance(inner, DistributedDataParallel) else network
