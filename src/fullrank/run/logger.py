"""The work between two training steps: update the online probe, evaluate spectra, write the log, raise alarms, save
checkpoints.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from fullrank.config import from_json
from fullrank.distributed import world_size
from fullrank.errors import UserError
from fullrank.files import read_json, read_jsonl, write_json
from fullrank.recipes import to_dict
from fullrank.recipes.forecast import duration
from fullrank.run.collapse_detector import CollapseDetector, compute_burn_in_end
from fullrank.run.cost import REST, WARM_UP, Pace, explain_busy_cores
from fullrank.run.directory import describe_saved, discard_replaced
from fullrank.run.metrics import MetricsWriter, WandbOptions
from fullrank.run.monitor import evaluate_spectra, evaluate_views, full_spectra, score_probe, variance_within_views
from fullrank.run.resume import checkpoint_meta
from fullrank.run.rows import OnlineRow, Row, SpectrumMetrics, SpectrumRow, TrainRow
from fullrank.run.spectrum_history import SpectrumFile
from fullrank.run.steps import TrainingRun
from fullrank.run.terminal import ProgressBar, describe_terms, memory_in_use
from fullrank.spectrum import Spectrum, intraclass_correlation
from fullrank.training import Step, save_checkpoint

NUM_LEADING = 16  # number of eigenvalues in the row of a training step
BATCH_SAMPLES = 256  # max. images of a training batch in its spectrum, so that its cost does not grow with the batch
DATA_BOUND = 0.3  # share of the step time; a GPU that waits longer for batches is limited by data loading


class NullLogger:
    """The logger of every process except the first: it writes nothing, but takes part in the communication of
    checkpoints. All processes have equal weights, so only the first process evaluates.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    def __enter__(self) -> "NullLogger":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def evaluate_start(self) -> None:
        """Do nothing."""

    def after_step(self, step: Step) -> None:
        """Take part in the checkpoints that are due."""
        if step.step in self.run.checkpoint_steps:
            self.save_checkpoint(step.step)

    def save_checkpoint(self, step: int) -> None:
        """Send to the first process what only this process knows."""
        self.run.gather_for_checkpoint(step)


class Stopwatch:
    """The seconds of a run, of the processor, and of some parts of the run; those before the run was resumed count.

    Args:
        before: the durations in the environment.json of the run that is resumed.
    """

    def __init__(self, before: dict[str, float]) -> None:
        seconds = before.get("duration_seconds", 0.0)
        self.parts = {part: seconds * before.get(f"{part}_share", 0.0) for part in ("spectrum", "online")}
        self._began = time.perf_counter() - seconds
        self._cpu_began = time.process_time() - before.get("cpu_seconds", 0.0)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of the context as a part of the run."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] += time.perf_counter() - started

    def read(self) -> dict[str, float]:
        """Return the durations for environment.json."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        shares = {f"{part}_share": round(value / seconds, 4) for part, value in self.parts.items()}
        return {"duration_seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), **shares}


class RunLogger:
    """The logger of the first process: it writes the run directory, and changes no weights, gradients or global random
    state.

    Args:
        run: the run in progress.
        wandb: log to W&B too; a dict gives arguments of `wandb.init`.
        console: where to print.
    """

    def __init__(self, run: TrainingRun, *, wandb: WandbOptions | bool, console: Console) -> None:
        self.run, self.console = run, console
        recipe, path = run.recipe, run.path
        if run.start:
            errors, _ = read_jsonl(path / "decode_errors.jsonl")
            run.data.decoding.errors.reasons |= {str(error.get("name")): str(error.get("reason")) for error in errors}
        self.environment = read_json(path / "environment.json")
        before = {name: self.environment[name] for name in Stopwatch({}).read() if name in self.environment}
        self.watch = Stopwatch(from_json(dict[str, float], before, f"{path / 'environment.json'}"))
        self.spectrum_file = SpectrumFile(path / "spectrum.npz", after=run.start or -1)
        self.writer = MetricsWriter(path, run.log, wandb=wandb, config=to_dict(recipe))
        warmup = round(recipe.schedule.warmup * run.steps_per_epoch)
        self.detector = CollapseDetector(compute_burn_in_end(steps=run.total, warmup=warmup), to_dict(recipe))
        for row in run.log:
            self.detector.update(row)  # a resumed run does not repeat an alarm
        self.progress = ProgressBar(
            console, start=run.start, total=run.total, steps_per_epoch=run.steps_per_epoch, batch_size=recipe.batch_size
        )
        self.unread_terms: list[tuple[int, dict[str, Tensor]]] = []
        self.effective_rank: tuple[int, float] | None = None  # of the last measured training batch, with its step
        self.pace, self.warm, self.at_start = Pace(run.fabric.device), (0.0, 0.0, 0.0), 0.0

    def __enter__(self) -> "RunLogger":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.progress.stop()
        # After an exception, e.g. for a full disk, an error while closing the files would hide the exception.
        with suppress(OSError, UserError) if kind else nullcontext():
            self.writer.close()
            self.write_state()
        if count := len(self.run.data.decoding.errors.reasons):
            what = f"{count} image{'s' * (count > 1)} could not be read"
            self.console.print(f"{what}; see {self.run.path / 'decode_errors.jsonl'}")

    def write_state(self) -> None:
        """Write the durations and the decode errors."""
        self.run.data.decoding.errors.write(self.run.path / "decode_errors.jsonl")
        write_json(self.run.path / "environment.json", self.environment | self.watch.read())

    def evaluate_start(self) -> None:
        """Evaluate the weights before the first step."""
        self.console.print("before the first step, spectrum and probe are measured once")
        self.evaluate_spectrum(0)
        if 0 in self.run.score_steps:
            self.score_probe(0)
        self.at_start = sum(self.watch.parts.values())

    def after_step(self, step: Step) -> None:
        """Update the probe; log, evaluate spectra and save a checkpoint if this step is due."""
        run, k, last = self.run, step.step, step.step == self.run.total
        self.unread_terms.append((k, step.terms))
        known = step.labels < len(run.probe.b)  # a stream may have labels beyond the known classes
        labels = step.labels.where(known, -1).repeat(len(step.R))
        factor = 1.0 if run.recipe.probe.schedule == "constant" else run.lr_factor(k - 1)
        probed = run.probe.step(step.R.flatten(0, 1), labels, lr_factor=factor)
        if k % run.recipe.log_every == 0 or last:
            self.log_train(step, probed)
        if k % run.data.plan.every == 0 or last:
            self.read_terms()
            self.check_weights(k)
            self.evaluate_spectrum(k, step.R)
        if k in run.score_steps:
            self.check_weights(k)
            self.score_probe(k)
        if k in run.checkpoint_steps:
            self.save_checkpoint(k)
        if k - run.start == WARM_UP:
            # for the first batches it waits while the workers start
            self.warm = run.batches.wait_seconds, time.perf_counter(), time.thread_time()
        if self.pace.tick(sum(self.watch.parts.values())) and not last:
            self.announce_pace(k - run.start - WARM_UP)
        self.progress.show(k)

    def announce_pace(self, steps: int) -> None:
        """Print how long the run takes, now that it is measured on `steps` steps."""
        run, seconds, device = self.run, self.pace.step_seconds or 0.0, self.run.fabric.device
        waits = min((run.batches.wait_seconds - self.warm[0]) / (steps * seconds), 1.0)
        share = (time.thread_time() - self.warm[2]) / (time.perf_counter() - self.warm[1])
        alone = device.type == "cpu" and world_size() == 1  # a process that waits for others computes nothing meanwhile
        busy = explain_busy_cores(share + waits, torch.get_num_threads() if alone else 1)
        is_bound = waits > DATA_BOUND and device.type == "cuda"
        advice = ": the GPU waits for data (--data.workers, --data.storage memory: docs/data-formats.md)" * is_bound
        self.console.print(
            f"about {duration(REST * seconds * (run.total - run.start) + 2 * self.at_start)} with "
            f"{run.total - run.start:,} steps of {seconds:.3g} seconds, measured · memory {memory_in_use(device)} · "
            f"loading batches takes {waits:.0%} of the time{advice}{busy}"
        )

    def log_train(self, step: Step, probed: dict[str, Any]) -> None:
        """Write the row of a training step."""
        recipe, terms = self.run.recipe, self.read_terms()
        values = torch.stack([probed["loss"], probed["accuracy"].to(probed["loss"].dtype)]).tolist()  # one transfer
        probe_loss, accuracy = (None if math.isnan(value) else value for value in values)  # NaN: no label in this batch
        every = max(recipe.spectrum.train_batch_every, recipe.log_every)
        with self.require_finite_embeddings(step.step, "training images"):
            outputs = {"backbone": step.R, "projector": step.embeddings["Z"]}
            row = TrainRow(
                step=step.step,
                epoch=self.run.epoch(step.step),
                loss=sum(terms.values()),
                terms=terms,
                lr=step.lr,
                images_per_second=round(self.progress.speed(step.step), 1),
                probe_loss=None if accuracy is None else probe_loss,
                probe_train_accuracy=accuracy,
                relative_variance={name: variance_within_views(output) for name, output in outputs.items()},
                **(self.evaluate_batch(step) if step.step % every < recipe.log_every else {}),
            )
        self.log_row(row)
        self.progress.caption = describe_terms(terms, self.effective_rank)

    def evaluate_batch(self, step: Step) -> dict[str, Any]:
        """Return the spectrum fields of a training row, computed from embeddings of the first view."""
        with self.watch.measure("spectrum"):
            spectrum = Spectrum.from_embeddings(step.embeddings["Z"][0, :BATCH_SAMPLES])
            rank, leading = spectrum.effective_rank(), spectrum.eigenvalues[:NUM_LEADING].tolist()
        self.effective_rank = step.step, rank
        leading = tuple(float(f"{value:.6g}") for value in leading)
        return {"effective_rank": rank, "max_rank": min(spectrum.n - 1, spectrum.D), "leading_eigenvalues": leading}

    def evaluate_spectrum(self, step: int, R: Tensor | None = None) -> None:
        """Evaluate the spectra of the held-out images, the loss on their views, and the intraclass correlation of the
        last batch's views.

        Args:
            step: number of steps so far.
            R: (V, n, D_b) representations of the last batch; None before the first batch.
        """
        run, data = self.run, self.run.data
        how = {"seed": run.recipe.seed, "batch_size": run.recipe.batch_size}
        held_out, with_loss = data.held_out, data.plan.has_loss(step, run.total)
        with (
            self.watch.measure("spectrum"),
            run.fabric.autocast(),
            self.require_finite_embeddings(step, "held-out images"),
        ):
            spectra, features = evaluate_spectra(run.method, held_out.pixels, run.preprocess)
            views: dict[str, Any] = evaluate_views(run.method, held_out, run.views, **how, with_loss=with_loss)
            full = full_spectra(run) if step in (0, run.total) else {}
        if full:
            views["full"] = {location: SpectrumMetrics.from_spectrum(spectrum) for location, spectrum in full.items()}
            views["full_train_images"] = sum(map(len, data.full[1:]))
        for measured in filter(None, (spectra, full) if step else (full, spectra)):  # the full ones at both ends
            self.spectrum_file.append(step, measured)
        labels = data.held_out.labels.to(features.device)
        counts = labels[labels >= 0].bincount()
        probe: dict[str, Any] = {}
        if labelled := int(counts.sum()):
            accuracy, majority = run.probe.accuracy(features, labels), int(counts.max()) / labelled
            probe = {"probe_accuracy": accuracy, "probe_images": labelled, "probe_majority": majority}
        self.log_row(
            SpectrumRow(
                step=step,
                epoch=run.epoch(step),
                **{location: SpectrumMetrics.from_spectrum(spectrum) for location, spectrum in spectra.items()},
                intraclass_correlation=None if R is None else intraclass_correlation(R),
                **probe,
                **views,
            )
        )

    def score_probe(self, step: int) -> None:
        """Score the online probe on all test images, or a linear probe on the labelled images, in eval mode."""
        recipe, epoch = self.run.recipe, self.run.epoch(step)
        with self.watch.measure("online"):
            score = score_probe(self.run)
        probe, name = ("linear", "a linear probe") if recipe.probe.labelled else ("online", "the online probe")
        self.log_row(OnlineRow(step=step, epoch=epoch, probe=probe, **asdict(score)))
        kind = "validation" if recipe.data.validation and not recipe.probe.labelled else "test"
        top5 = "" if score.top5 is None else f", top 5 {score.top5:.1%}"
        line = f"epoch {epoch:g}: {name} classifies {score.accuracy:.1%} of {score.images:,} {kind} images{top5}"
        self.console.print(line, highlight=False)

    def log_row(self, row: Row) -> None:
        """Write a row and the alarms that it raises."""
        self.writer.write(row)
        for alarm in self.detector.update(row):
            self.writer.write(alarm)
            self.console.print(f"warning at step {row.step}: {alarm.message}; {alarm.remedy}", style="yellow")

    def read_terms(self) -> dict[str, float]:
        """Copy the terms of all steps since the last call from the device, in one transfer, and return those of the
        last step.

        Raises:
            UserError: a term is NaN or infinite.
        """
        names = list(self.unread_terms[-1][1])
        values = torch.stack([torch.stack([terms[name] for name in names]) for _, terms in self.unread_terms]).tolist()
        for (step, _), row in zip(self.unread_terms, values, strict=True):
            for name, value in zip(names, row, strict=True):
                if not math.isfinite(value):
                    observation = f"the loss is not finite at step {step}: term '{name}' is {value}"
                    raise self.not_finite_error(step, "loss", observation)
        del self.unread_terms[:-1]
        return dict(zip(names, values[-1], strict=True))

    def check_weights(self, step: int) -> None:
        """Check all weights and buffers, because a finite loss can have an infinite gradient.

        Raises:
            UserError: a weight or buffer is NaN or infinite.
        """
        tensors = self.run.method.state_dict()
        finite = torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).tolist()  # one transfer
        if bad := [name for name, ok in zip(tensors, finite, strict=True) if not ok]:
            raise self.not_finite_error(step, "weights", f"weights '{bad[0]}' are not finite after step {step}")

    @contextmanager
    def require_finite_embeddings(self, step: int, images: str) -> Iterator[None]:
        """Turn the error for embeddings that are not finite into an error that names the step and the cause."""
        try:
            yield
        except UserError as error:
            observation = f"the embeddings of {images} are not finite at step {step}"
            raise self.not_finite_error(step, "embeddings", observation) from error

    def not_finite_error(self, step: int, where: str, observation: str) -> UserError:
        """Log the alarm that ends a run, and return an error with the cause, the remedy and the last checkpoint."""
        alarm = self.detector.not_finite(step, self.run.epoch(step), where, observation)
        self.writer.write(alarm)
        return UserError(f"{alarm.message}; {alarm.remedy}; {describe_saved(self.run.path)}")

    def save_checkpoint(self, step: int) -> None:
        """Check loss and weights, flush the log to the disk, and write a checkpoint.

        Raises:
            UserError: loss or weights are not finite, or the disk is full.
        """
        run = self.run
        self.read_terms()
        self.check_weights(step)
        self.writer.flush()
        pass_ends = run.gather_for_checkpoint(step)
        self.write_state()
        save_checkpoint(
            run.path / "checkpoints",
            step,
            weights=run.method.state_dict(),
            state={"step": step, "optimizer": run.optimizer.state_dict(), "probe": run.probe.state_dict()},
            meta=checkpoint_meta(run.recipe, run.data, pass_ends),
            keep=run.recipe.keep_checkpoints,
        )
        discard_replaced(run.path)
