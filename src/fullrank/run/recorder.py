"""What happens between two steps: the probe learns, the spectrum is watched, rows are logged, checkpoints are written."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation import OnlineProbe
from fullrank.methods import Method
from fullrank.recipes import Recipe, preprocess_of
from fullrank.run.data import TrainingData
from fullrank.run.directory import Run, read_json, write_json
from fullrank.run.log import Log
from fullrank.run.progress import Bar, forecast
from fullrank.run.watch import SpectrumFile, advice, look, plan_interval
from fullrank.spectrum import Spectrum
from fullrank.training import Step, save_checkpoint

FORECAST_AFTER = 20  # steps, counted by this process
LEADING = 16  # eigenvalues of the training batch in a row


class Recorder:
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
        self.steps_per_epoch = data.images // recipe.batch
        self.preprocess = preprocess_of(recipe)
        self.held_out = data.held_out
        self.watch_every = recipe.watch.every or plan_interval(
            steps=total, batch=recipe.batch, views=sum(view.count for view in recipe.views), samples=len(data.held_out)
        )
        self.saves = {round(total * (i + 1) / recipe.checkpoints) for i in range(recipe.checkpoints)}
        self.log = Log(path, after=done, wandb=wandb, name=recipe.name)
        self.spectra = SpectrumFile(path / "spectrum.npz", after=done, before=Run(path).spectra)
        self.bar = Bar(console, done=done, total=total, steps_per_epoch=self.steps_per_epoch, batch=recipe.batch)
        self.unchecked: list[tuple[int, dict[str, Tensor]]] = []
        self.warned: set[str] = set()
        self.rank: float | None = None
        self.watch_seconds = 0.0
        self.seconds_before = float(read_json(path / "environment.json").get("duration_seconds", 0.0))

    def __enter__(self) -> "Recorder":
        self.started = time.perf_counter()
        self.bar.__enter__()
        if not self.done:
            self.watch(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.__exit__()
        self.log.close()
        self.data.skipped.write(self.path / "skipped.jsonl")
        environment = read_json(self.path / "environment.json")
        environment["duration_seconds"] = round(self.seconds_before + self.seconds, 2)
        environment["watch_share"] = round(self.watch_seconds / self.seconds, 4)
        write_json(self.path / "environment.json", environment)

    @property
    def seconds(self) -> float:
        """Seconds of this process in the loop."""
        return time.perf_counter() - self.started

    def after(self, step: Step, *, waited: float) -> None:
        """Look at one step."""
        last = step.step == self.total
        self.unchecked.append((step.step, step.terms))
        views = len(step.R)
        probed = self.probe.step(step.R.flatten(0, 1), step.labels.repeat(views))
        if step.step % self.recipe.log_every == 0 or last:
            self.row(step, probed)
        if step.step % self.watch_every == 0 or last:
            self.check_finite()
            self.watch(step.step)
        if step.step in self.saves:
            self.checkpoint(step.step)
        if step.step - self.done == FORECAST_AFTER and not last:
            seconds = self.seconds - self.watch_seconds
            left = self.total - step.step
            self.console.print(forecast(steps_left=left, seconds=seconds, steps=FORECAST_AFTER, waited=waited, device=self.fabric.device))
        self.bar.advance(step.step)

    def row(self, step: Step, probed: dict[str, Any]) -> None:
        """Write the row of a training step."""
        terms = self.check_finite()
        row: dict[str, Any] = {
            "step": step.step,
            "epoch": round(step.step / self.steps_per_epoch, 4),
            "kind": "train",
            "loss": sum(terms.values()),
            "terms": terms,
            "lr": step.lr,
            "images_per_second": round(self.bar.speed(step.step), 1),
        }
        if probed:
            row |= {"probe_loss": float(probed["loss"]), "probe_train_accuracy": float(probed["accuracy"])}
        every = max(self.recipe.watch.batch_every, self.recipe.log_every)
        if step.step % every < self.recipe.log_every:
            row |= self.batch_spectrum(step)
        self.log.write(row)
        self.bar.note(terms, self.rank)

    def batch_spectrum(self, step: Step) -> dict[str, Any]:
        """Return the leading eigenvalues of the first view's embeddings of this batch; at most N − 1 are nonzero."""
        Z = step.embeddings.get("Z", step.R)[0]
        spectrum = Spectrum.from_embeddings(Z.float())
        self.rank = spectrum.effective_rank()
        return {
            "effective_rank": self.rank,
            "at_most": min(spectrum.n - 1, spectrum.D),
            "leading": [float(f"{value:.6g}") for value in spectrum.eigenvalues[:LEADING].tolist()],
        }

    def watch(self, step: int) -> None:
        """Measure the held-out images, and warn of dead dimensions."""
        started = time.perf_counter()
        with self.fabric.autocast():
            seen = look(self.method, self.held_out, self.preprocess)
        self.spectra.append(step, seen.spectra)
        measures = seen.measures()
        row: dict[str, Any] = {"step": step, "epoch": round(step / self.steps_per_epoch, 4), "kind": "watch", **measures}
        if bool((self.data.held_out_labels >= 0).any()):
            row["probe_accuracy"] = self.probe.accuracy(seen.features, self.data.held_out_labels.to(seen.features.device))
        self.log.write(row)
        for where in measures:
            self.warn(step, where, measures[where])
        self.watch_seconds += time.perf_counter() - started

    def warn(self, step: int, where: str, measures: dict[str, float | int | None]) -> None:
        """Warn of dead dimensions once for each place; untrained networks are not judged."""
        found = advice(measures, where) if step >= self.steps_per_epoch else None
        if found and where not in self.warned:
            self.warned.add(where)
            message, remedy = found
            self.log.write(
                {"step": step, "epoch": round(step / self.steps_per_epoch, 4), "kind": "warning", "message": message, "remedy": remedy}
            )
            self.console.print(f"warning at step {step}: {message}; {remedy}", style="yellow")

    def check_finite(self) -> dict[str, float]:
        """Read the terms of all steps since the last call, in one transfer, and return the last step's.

        Raises:
            UserError: a term is NaN or infinite.
        """
        names = list(self.unchecked[-1][1])
        values = torch.stack([torch.stack([terms[name] for name in names]) for _, terms in self.unchecked]).tolist()
        for (step, _), row in zip(self.unchecked, values, strict=True):
            for name, value in zip(names, row, strict=True):
                if not torch.isfinite(torch.tensor(value)):
                    raise UserError(self.not_finite(step, name, value))
        del self.unchecked[:-1]
        return dict(zip(names, values[-1], strict=True))

    def not_finite(self, step: int, name: str, value: float) -> str:
        """Return the line that says where the loss broke and what to try."""
        kept = [checkpoint.step for checkpoint in Run(self.path).checkpoints]
        left = f"the checkpoint of step {kept[-1]} is whole" if kept else "no checkpoint was written yet"
        return (
            f"the loss is not finite at step {step}: term '{name}' is {value}; lower --optimizer.lr (now {self.recipe.optimizer.lr:g}), "
            f"lengthen --schedule.warmup, or use --machine.precision 32-true; {left}"
        )

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint, after making sure that it is worth keeping and that the log is on the disk before it."""
        self.check_finite()
        self.log.flush()
        save_checkpoint(
            self.path / "checkpoints",
            step,
            weights=self.method.state_dict(),
            state={"step": step, "optimizer": self.optimizer.state_dict(), "probe": self.probe.state_dict()},
            meta={"recipe": self.recipe.fingerprint},
        )
