"""Measure the spectrum of embeddings in anyone's training loop, and warn of collapse."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.distributed import gather, rank, world_size
from fullrank.errors import UserError
from fullrank.files import write_json
from fullrank.methods import at_least_float32
from fullrank.models.features import restore_modes
from fullrank.run.collapse_detector import CollapseDetector, compute_burn_in_end
from fullrank.run.directory import RECIPE, create_run
from fullrank.run.environment import platform_info
from fullrank.run.metrics import Metrics, MetricsWriter, scalars
from fullrank.run.monitor import variance_within_views
from fullrank.run.rows import AlarmRow, Row, SpectrumMetrics, SpectrumRow, TrainRow
from fullrank.run.spectrum_history import LOCATIONS, SpectrumFile
from fullrank.run.terminal import stderr
from fullrank.spectrum import StreamingSpectrum, intraclass_correlation
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION

EVALUATIONS = 50  # by default, over the run
Loss = float | Tensor | Mapping[str, float | Tensor] | None
ADVICE = "lower the learning rate, lengthen the warm-up, or compute in float32"


def pooled(output: Any) -> Tensor:
    """Return the output of a network as (n, D): the pooled output of a Hugging Face model; a feature map is averaged.

    Raises:
        UserError: the output is not a tensor (n, D) or (n, D, H, W), and has no `pooler_output`.

    >>> pooled(torch.ones(2, 8, 3, 3)).shape, pooled(torch.ones(2, 8)).shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    """
    output = getattr(output, "pooler_output", output)
    if isinstance(output, Tensor) and output.ndim in (2, 4):
        return output.mean((2, 3)) if output.ndim == 4 else output
    found = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    raise UserError(
        f"the network returns {found}, expected (n, D) or (n, D, H, W); give embedding=, a function to (n, D)"
    )


class CollapseMonitor:
    """Measures the spectrum of a backbone and a projector during training, and warns of collapse, without labels.

        monitor = CollapseMonitor(backbone, projector, steps=10_000, out="runs/mine")
        for step in range(10_000):
            ...                                          # forward, backward, optimizer.step()
            monitor.step(loss)                           # prints an alarm where there is one, and returns it
        monitor.close()

    Forward hooks read the outputs of the networks; the networks stay as they are. In train mode the first view of each
    step counts: the last steps before an evaluation, until there are ten embeddings per dimension. The weights change a
    little in the meantime, and BatchNorm is in train mode. `evaluation` measures held-out images instead.

    With several processes, each has a monitor, and calls the same methods: the spectrum is that of all embeddings, and
    the first process writes and prints.

    With `out`, the folder becomes a run that `fullrank report` shows: `metrics.jsonl`, TensorBoard, the spectra.

    Attributes:
        alarms: All alarms so far.

    Args:
        backbone: images to representations R (n, D_b).
        projector: representations to embeddings Z (n, D), or the network whose output the loss takes; None: there is
            none.
        steps: number of optimizer steps of the training.
        epochs: number of its epochs, for the log.
        warmup: number of steps of the learning rate's warm-up; collapse is judged after three times as many.
        views: number of forward passes of a step with views of the same images, whose intraclass correlation is
            measured; 1: the views are joined in one pass.
        every: steps between two evaluations; None: a fiftieth of all; 0: only `evaluation` measures.
        log_every: steps between two rows of the loss.
        out: folder of the log; None: none.
        start: number of steps already taken, if the training is continued; later rows are removed from the log.
        log: called with the numbers of each row by name, and the step: `wandb.log`, `trackio.log`.
        about: settings of the training, as JSON, for the report.
        embedding: makes (n, D) of an output; the default averages a feature map.

    Raises:
        UserError: `out` holds other files, or an output is no embedding.
    """

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module | None = None,
        *,
        steps: int,
        epochs: float = 1.0,
        warmup: int = 0,
        views: int = 2,
        every: int | None = None,
        log_every: int = 10,
        out: str | Path | None = None,
        start: int = 0,
        log: Callable[..., Any] | None = None,
        about: Mapping[str, Any] | None = None,
        embedding: Callable[[Any], Tensor] = pooled,
    ) -> None:
        networks = {"backbone": backbone} | ({"projector": projector} if projector is not None else {})
        self.alarms: list[AlarmRow] = []
        self._every = max(steps // EVALUATIONS, 1) if every is None else every
        self._steps, self._epochs, self._log_every, self._step = steps, epochs, log_every, start
        self._networks, self._views = networks, views
        self._embedding, self._log = embedding, log
        self._outputs: dict[str, list[Tensor]] = {name: [] for name in networks}
        self._streams: dict[str, StreamingSpectrum] = {}
        self._evaluating = False
        self._hooks = [network.register_forward_hook(self._hook(name)) for name, network in networks.items()]
        self._detector = CollapseDetector(compute_burn_in_end(steps=steps, warmup=warmup))
        self._writer = self._spectra = None
        if out is not None and rank() == 0:
            self._open(Path(out), dict(about or {}), start)

    def _open(self, out: Path, about: dict[str, Any], start: int) -> None:
        """Create the folder, or go on with its log."""
        before = Metrics.read(out / "metrics.jsonl") if start else ()
        if not start:
            create_run(out, out.name)
            write_json(out / RECIPE, {"name": out.name} | about)
            write_json(out / "environment.json", platform_info() | {"monitored": True})
        kept = [row for row in before if row.step <= start]
        for row in kept:
            self._detector.update(row)
        self._writer = MetricsWriter(out, kept, wandb=False, config={})
        self._spectra = SpectrumFile(out / "spectrum.npz", after=start or -1)

    def _hook(self, name: str) -> Callable[..., None]:
        def read(module: nn.Module, _: Any, output: Any) -> None:
            if self._evaluating:
                self._add(name, self._embedding(output))
            elif module.training and torch.is_grad_enabled():
                self._outputs[name].append(self._embedding(output).detach())

        return read

    def _add(self, name: str, Z: Tensor) -> None:
        self._streams.setdefault(name, StreamingSpectrum()).update(at_least_float32(Z))

    def step(self, loss: Loss = None, *, lr: float | None = None) -> list[AlarmRow]:
        """Count an optimizer step, and return the alarms that it raises for the first time.

        Args:
            loss: the loss of this step, or its weighted terms by name; None: it is not logged.
            lr: the learning rate, for the log.
        """
        self._step += 1
        outputs = {name: each for name, each in self._outputs.items() if each}
        self._outputs = {name: [] for name in self._outputs}
        before, last = len(self.alarms), self._step == self._steps
        if loss is not None and outputs and (self._step % self._log_every == 0 or last):
            self._log_train(loss, outputs, lr)
        left = min(-self._step % self._every, max(self._steps - self._step, 0)) if self._every else math.inf
        for name, (first, *_) in outputs.items():
            if left * len(first) * world_size() < SAMPLES_PER_DIMENSION * first.shape[1]:
                self._add(name, first)
        if left == 0 and self._streams:
            views = outputs.get("backbone", [])[: self._views]
            R = at_least_float32(gather(torch.stack(views))) if len(views) > 1 else None
            correlation = None if R is None else intraclass_correlation(R)
            self._evaluate("views of the last steps", intraclass_correlation=correlation)
        return self.alarms[before:]

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Measure the spectrum of what the networks embed inside the context; they are in eval mode, without gradient.

        with monitor.evaluation():
            for images in loader:                    # held-out images, without augmentation; of this process
                projector(backbone(images))
        """
        training, self._streams, self._evaluating = self._streams, {}, True
        try:
            with torch.no_grad(), ExitStack() as stack:
                for network in self._networks.values():
                    stack.enter_context(restore_modes(network))
                    network.eval()
                yield
            self._evaluate("held-out images")
        finally:
            self._streams, self._evaluating = training, False

    def _log_train(self, loss: Any, outputs: dict[str, list[Tensor]], lr: float | None) -> None:
        """Log the loss, and the variance of the outputs of the last step."""
        named = loss if isinstance(loss, Mapping) else {"loss": loss}
        terms = {name: float(x.detach() if isinstance(x, Tensor) else x) for name, x in named.items()}
        if not math.isfinite(sum(terms.values())):
            return self._not_finite("loss", f"the loss is {sum(terms.values())} at step {self._step}")
        if not all(each[0].isfinite().all() for each in outputs.values()):
            return self._not_finite("embeddings", f"the embeddings are not finite at step {self._step}")
        numbers = {"loss": sum(terms.values()), "terms": terms, "lr": lr}
        variance = {name: variance_within_views(at_least_float32(each[0])[None]) for name, each in outputs.items()}
        self._write(TrainRow(step=self._step, epoch=self._epoch, **numbers, relative_variance=variance))

    def _evaluate(self, images: str, **fields: Any) -> None:
        """Log the spectra of the embeddings in the streams, and begin again."""
        streams, self._streams = self._streams, {}
        if missing := [name for name in self._outputs if name not in streams]:
            raise UserError(f"the {missing[0]} embedded nothing, expected a batch on each process; call this module")
        try:
            spectra = {name: stream.compute() for name, stream in streams.items()}
        except UserError as error:
            return self._not_finite("embeddings", f"at step {self._step}: {error}")
        self._detector.images = images
        metrics = {name: SpectrumMetrics.from_spectrum(spectrum) for name, spectrum in spectra.items()}
        metrics.setdefault("projector", metrics["backbone"])
        if self._spectra:
            self._spectra.append(self._step, {name: spectra.get(name, spectra["backbone"]) for name in LOCATIONS})
        self._write(SpectrumRow(step=self._step, epoch=self._epoch, **metrics, **fields))

    def _not_finite(self, where: str, text: str) -> None:
        if not any(alarm.alarm == "not finite" for alarm in self.alarms):
            why: dict[str, Any] = {
                "cause": "large steps",
                "message": f"{text}; probably because the steps are too large",
            }
            why |= {"alarm": "not finite", "where": where, "metric": where, "remedy": ADVICE}
            self._raise(AlarmRow(step=self._step, epoch=self._epoch, **why))

    @property
    def _epoch(self) -> float:
        return self._epochs * self._step / self._steps

    def _write(self, row: Row) -> None:
        """Log a row, and the alarms that it raises."""
        if self._writer:
            self._writer.write(row)
        if self._log and rank() == 0:
            self._log(scalars(row), step=row.step)
        for alarm in self._detector.update(row):
            self._raise(alarm)

    def _raise(self, alarm: AlarmRow) -> None:
        alarm = replace(alarm, remedy=re.sub(r" \(--[^)]*\)", "", alarm.remedy))  # the flags of `fullrank pretrain`
        self.alarms.append(alarm)
        if self._writer:
            self._writer.write(alarm)
        if rank() == 0:
            stderr().print(f"warning at step {alarm.step}: {alarm.message}; {alarm.remedy}", style="yellow")

    def close(self) -> None:
        """Remove the hooks and close the log."""
        for hook in self._hooks:
            hook.remove()
        if self._writer:
            self._writer.close()
            self._writer = None
