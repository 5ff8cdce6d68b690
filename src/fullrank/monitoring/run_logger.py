"""What the first process does between two steps: the probe learns, the spectrum is watched, rows are logged, checkpoints are written."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import Tensor

from fullrank.data import TrainingData
from fullrank.errors import UserError
from fullrank.evaluation import OnlineProbe
from fullrank.launch.devices import resolve_precision
from fullrank.methods import Method
from fullrank.monitoring.alarm_messages import alarm_message, alarm_remedy
from fullrank.monitoring.collapse_detector import CollapseDetector, burn_in_end, not_finite_alarm
from fullrank.monitoring.progress import Bar, forecast
from fullrank.monitoring.spectrum_evaluation import evaluate_spectrum, intraclass_correlation
from fullrank.recipes import Recipe, build_preprocess, to_dict
from fullrank.run.directory import Run
from fullrank.run.files import read_json, read_jsonl, write_json
from fullrank.run.metrics import MetricsWriter
from fullrank.run.rows import Row, SpectrumMetrics, SpectrumRow, TrainRow
from fullrank.run.spectrum_history import SpectrumFile
from fullrank.spectrum import Spectrum
from fullrank.training import Step, save_checkpoint

FORECAST_AFTER = 20  # steps, counted by this process
LEADING = 16  # eigenvalues of the training batch in a row


def checkpoint_steps(total: int, count: int) -> set[int]:
    """Return the steps of a run's checkpoints: evenly spaced, the last step's included.

    >>> sorted(checkpoint_steps(10, 4))
    [2, 5, 8, 10]
    """
    return {round(total * (i + 1) / count) for i in range(count)}


class RunLogger:
    """Looks at each step and writes the run directory. It never touches weights, gradients or global random state.

    Args:
        path: the run directory.
        recipe: complete.
        fabric: launched.
        method: the bare method, not fabric's wrapper.
        optimizer: the bare optimizer.
        probe: the online probe.
        data: for the held-out images.
        done: steps already taken.
        total: steps of the run.
        wandb: log to W&B too.
        console: where to print.
    """

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        fabric: Fabric,
        method: Method,
        optimizer: torch.optim.Optimizer,
        probe: OnlineProbe,
        data: TrainingData,
        *,
        done: int,
        total: int,
        wandb: bool,
        console: Console,
    ) -> None:
        self.path, self.recipe, self.fabric, self.data, self.console = path, recipe, fabric, data, console
        self.method, self.optimizer, self.probe = method, optimizer, probe
        self.done, self.total = done, total
        self.steps_per_epoch = data.num_images // recipe.batch
        self.preprocess = build_preprocess(recipe)
        self.held_out = data.held_out
        self.watch_every = data.plan.every
        self.saves = checkpoint_steps(total, recipe.checkpoints)
        before = Run(path)
        self.environment = read_json(path / "environment.json")
        kept = done if done else -1  # a run that was stopped before its first checkpoint keeps nothing of what it logged
        self.spectra = SpectrumFile(path / "spectrum.npz", after=kept)
        data.decode_errors.reasons |= {row["name"]: row["reason"] for row in read_jsonl(path / "decode_errors.jsonl")[0]} if done else {}
        self.log = MetricsWriter(path, after=kept, wandb=wandb, name=recipe.name)
        warmup = round(recipe.schedule.warmup * self.steps_per_epoch)
        self.detector = CollapseDetector(burn_in_end(steps=total, warmup=warmup), to_dict(recipe))
        for row in before.metrics:
            self.detector.update(row)  # what was raised before the run was stopped is not raised again
        self.bar = Bar(console, done=done, total=total, steps_per_epoch=self.steps_per_epoch, batch=recipe.batch)
        self.unchecked: list[tuple[int, dict[str, Tensor]]] = []
        self.effective_rank: float | None = None
        self.seconds_before = float(self.environment.get("duration_seconds", 0.0))
        self.watch_seconds_before = self.seconds_before * float(self.environment.get("spectrum_share", 0.0))
        self.watch_seconds = 0.0

    def __enter__(self) -> "RunLogger":
        self.started = time.perf_counter()
        self.bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.__exit__()
        # On a full disk, what ended the run says more than what the closing then runs into.
        with suppress(OSError, UserError) if kind else nullcontext():
            self.log.close()
            self.note_skipped()
            self.note_times()
        if count := len(self.data.decode_errors.reasons):
            self.console.print(f"{count} image{'s' * (count > 1)} could not be read; listed in {self.path / 'decode_errors.jsonl'}")

    def note_skipped(self) -> None:
        """Write the list of files that could not be read."""
        self.data.decode_errors.write(self.path / "decode_errors.jsonl")

    def note_times(self) -> None:
        """Write how long the run took so far, before it was resumed and since, and which share of that the watch."""
        seconds = self.seconds_before + self.seconds
        watched = self.watch_seconds_before + self.watch_seconds
        times = {"duration_seconds": round(seconds, 2), "spectrum_share": round(watched / seconds, 4)}
        write_json(self.path / "environment.json", self.environment | times)

    @property
    def seconds(self) -> float:
        """Seconds of this process in the loop."""
        return time.perf_counter() - self.started

    def after(self, step: Step, *, waited: float) -> None:
        """Look at one step."""
        last = step.step == self.total
        self.unchecked.append((step.step, step.terms))
        known = step.labels.where(step.labels < len(self.probe.b), -1)  # a remote stream may bring a label that nobody announced
        probed = self.probe.step(step.R.flatten(0, 1), known.repeat(len(step.R)))
        if step.step % self.recipe.log_every == 0 or last:
            self.log_train(step, probed)
        if step.step % self.watch_every == 0 or last:
            self.check_finite()
            self.check_weights(step.step)
            self.watch(step.step, step.R)
        if step.step in self.saves:
            self.checkpoint(step.step)
        if step.step - self.done == FORECAST_AFTER and not last:
            seconds = self.seconds - self.watch_seconds
            left = self.total - step.step
            self.console.print(forecast(steps_left=left, seconds=seconds, steps=FORECAST_AFTER, waited=waited, device=self.fabric.device))
        self.bar.advance(step.step)

    def log_train(self, step: Step, probed: dict[str, Any]) -> None:
        """Write the row of a training step."""
        terms = self.check_finite()
        accuracy = float(probed["accuracy"])
        labelled = not math.isnan(accuracy)  # NaN: no image of this batch has a label
        every = max(self.recipe.spectrum.batch_every, self.recipe.log_every)
        row = TrainRow(
            step=step.step,
            epoch=self.epoch(step.step),
            loss=sum(terms.values()),
            terms=terms,
            lr=step.lr,
            images_per_second=round(self.bar.speed(step.step), 1),
            probe_loss=float(probed["loss"]) if labelled else None,
            probe_train_accuracy=accuracy if labelled else None,
            **(self.batch_spectrum(step) if step.step % every < self.recipe.log_every else {}),
        )
        self.log_row(row)
        self.bar.note(terms, self.effective_rank)

    def batch_spectrum(self, step: Step) -> dict[str, Any]:
        """Return the fields of a row that describe the spectrum of this batch's first view; at most N − 1 eigenvalues are nonzero."""
        started = time.perf_counter()
        Z = step.embeddings["Z"][0]
        with self.finite(step.step, "training images"):
            spectrum = Spectrum.from_embeddings(Z)
        self.effective_rank = spectrum.effective_rank()
        self.watch_seconds += time.perf_counter() - started
        return {
            "effective_rank": self.effective_rank,
            "max_rank": min(spectrum.n - 1, spectrum.D),
            "leading_eigenvalues": tuple(float(f"{value:.6g}") for value in spectrum.eigenvalues[:LEADING].tolist()),
        }

    def watch(self, step: int, R: Tensor | None = None) -> None:
        """Measure the held-out images, and how far the views of a training image agree.

        Args:
            step: steps taken so far.
            R: (V, n, D_b) representations of the last batch; None before the first.
        """
        started = time.perf_counter()
        with self.fabric.autocast(), self.finite(step, "held-out images"):
            seen = evaluate_spectrum(self.method, self.held_out, self.preprocess)
        self.spectra.append(step, seen.spectra)
        labelled = bool((self.data.held_out_labels >= 0).any())
        row = SpectrumRow(
            step=step,
            epoch=self.epoch(step),
            **{location: SpectrumMetrics.from_spectrum(spectrum) for location, spectrum in seen.spectra.items()},
            intraclass_correlation=None if R is None else intraclass_correlation(R),
            probe_accuracy=self.probe.accuracy(seen.features, self.data.held_out_labels.to(seen.features.device)) if labelled else None,
        )
        self.log_row(row)
        self.watch_seconds += time.perf_counter() - started

    def epoch(self, step: int) -> float:
        """Return the epochs that `step` steps make."""
        return round(step / self.steps_per_epoch, 4)

    def log_row(self, row: Row) -> None:
        """Write a row and the alarms that it raises."""
        self.log.write(row)
        for alarm in self.detector.update(row):
            self.log.write(alarm)
            self.console.print(f"warning at step {row.step}: {alarm_message(alarm)}; {alarm_remedy(alarm)}", style="yellow")

    def check_finite(self) -> dict[str, float]:
        """Read the terms of all steps since the last call, in one transfer, and return the last step's.

        Raises:
            UserError: a term is NaN or infinite.
        """
        names = list(self.unchecked[-1][1])
        values = torch.stack([torch.stack([terms[name] for name in names]) for _, terms in self.unchecked]).tolist()
        for (step, _), row in zip(self.unchecked, values, strict=True):
            for name, value in zip(names, row, strict=True):
                if not math.isfinite(value):
                    raise self.not_finite_error(step, "loss", term=name, value=str(value))
        del self.unchecked[:-1]
        return dict(zip(names, values[-1], strict=True))

    def check_weights(self, step: int) -> None:
        """Look for broken weights: a finite loss may have an infinite gradient, and its step breaks what the next loss is taken on.

        Raises:
            UserError: a weight or buffer is NaN or infinite.
        """
        for name, tensor in self.method.state_dict().items():
            if not tensor.isfinite().all():
                raise self.not_finite_error(step, "weights", tensor=name)

    @contextmanager
    def finite(self, step: int, images: str) -> Iterator[None]:
        """Say at which step a spectrum found embeddings that are not finite.

        Raises:
            UserError: it did.
        """
        try:
            yield
        except UserError as error:
            raise self.not_finite_error(step, "embeddings", images=images) from error

    def not_finite_error(self, step: int, where: str, **details: str) -> UserError:
        """Log the alarm for numbers that are not finite, and return the error that ends the run, with the last complete checkpoint."""
        precision = resolve_precision(self.recipe)
        alarm = not_finite_alarm(step, self.epoch(step), where, self.recipe, precision=precision, **details)
        self.log.write(alarm)
        complete = [checkpoint.step for checkpoint in Run(self.path).checkpoints if checkpoint.step < step]
        left = f"the checkpoint of step {complete[-1]} is whole" if complete else "no checkpoint was written before"
        return UserError(f"{alarm_message(alarm)}; {alarm_remedy(alarm)}; {left}")

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint, after making sure that it is worth keeping and that the log is on the disk before it.

        Raises:
            UserError: loss or weights are not finite, or the disk is full.
        """
        self.check_finite()
        self.check_weights(step)
        self.log.flush()
        self.data.decode_errors.exchange()
        self.note_skipped()
        self.note_times()
        save_checkpoint(
            self.path / "checkpoints",
            step,
            weights=self.method.state_dict(),
            state={"step": step, "optimizer": self.optimizer.state_dict(), "probe": self.probe.state_dict()},
            meta={"recipe": self.recipe.fingerprint, "images": self.data.num_images},
        )
