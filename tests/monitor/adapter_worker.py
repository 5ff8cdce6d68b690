"""What the callbacks of Lightning and of the Hugging Face Trainer log on one process, or on each of several."""

import tempfile
from pathlib import Path

import torch
import transformers
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from fullrank.distributed import convert_sync_batchnorm, rank, world_size
from fullrank.monitor.lightning import CollapseCallback
from fullrank.monitor.transformers import CollapseCallback as TransformersCallback
from fullrank.nn import Loss

N, D, BATCHES = 16, 4, 5


class Siamese(LightningModule):
    def __init__(self):
        super().__init__()
        backbone = nn.Sequential(nn.Linear(12, D), nn.BatchNorm1d(D))
        self.backbone, self.projector, self.criterion = (
            convert_sync_batchnorm(backbone),
            nn.Linear(D, D),
            Loss("vicreg"),
        )

    def forward(self, x0, x1):
        return {"loss": self.criterion(*(self.projector(self.backbone(x)) for x in (x0, x1)))}

    def training_step(self, batch, _):
        return self(**batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(fabric=None):
    rng = torch.Generator().manual_seed(0)
    images, held_out = torch.randn(BATCHES * N, 12, generator=rng), torch.randn(3, N, 12, generator=rng)
    images *= torch.linspace(1, 3, N).repeat(BATCHES)[:, None]  # the processes have different data
    rows = [{"x0": x, "x1": x + 0.1} for x in images]
    found, size = {}, N // world_size()
    for name in ("lightning", "transformers"):
        torch.manual_seed(0)
        module, logged = Siamese(), []
        options = {"log": lambda numbers, step, to=logged: to.append(numbers), "every": 2, "log_every": 1}
        with tempfile.TemporaryDirectory() as folder:
            if name == "lightning":
                callback = CollapseCallback(held_out.unbind(), "backbone", "projector", **options)
                quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
                several = {"devices": world_size(), "strategy": "ddp"} if world_size() > 1 else {"devices": 1}
                trainer = Trainer(
                    accelerator="cpu",
                    logger=False,
                    max_epochs=1,
                    use_distributed_sampler=False,
                    callbacks=[callback],
                    **quiet,
                    **several,
                )
                order = DistributedSampler(rows, world_size(), rank(), shuffle=False)
                trainer.fit(module, DataLoader(rows, size, sampler=order))
            else:
                callback = TransformersCallback(held_out.unbind(), "backbone", "projector", **options)
                arguments = transformers.TrainingArguments(
                    Path(folder),
                    per_device_train_batch_size=size,
                    num_train_epochs=1,
                    logging_steps=1,
                    report_to=[],
                    save_strategy="no",
                    use_cpu=True,
                    disable_tqdm=True,
                    learning_rate=0.01,
                    max_grad_norm=0.0,
                )
                transformers.Trainer(module, arguments, train_dataset=rows, callbacks=[callback]).train()
        spectra = [row for row in logged if "backbone/effective_rank" in row]
        found[f"{name}, logged"] = torch.tensor(len(logged))
        found[f"{name}, steps"] = torch.tensor(callback.monitor._step)
        found[f"{name}, ranks"] = torch.tensor([row["backbone/effective_rank"] for row in spectra])
        found[f"{name}, weights"] = module.backbone[0].weight.detach()
    return found
