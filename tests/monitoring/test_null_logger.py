from dataclasses import replace
from unittest.mock import Mock

import torch

from fullrank.data import prepare
from fullrank.images import DecodeErrors
from fullrank.monitoring.null_logger import NullLogger
from fullrank.monitoring.run_logger import checkpoint_steps
from fullrank.training import Step


def step(k):
    return Step(k, {"loss": torch.tensor(0.0)}, 0.1, torch.zeros(2, 4, 3), {"Z": torch.zeros(2, 4, 3)}, torch.zeros(4, dtype=torch.int64))


def test_it_meets_the_recorder_at_its_checkpoints_and_writes_nothing(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, _, data = prepare(replace(small, checkpoints=4), say=lambda line: None)
    exchange = Mock()
    monkeypatch.setattr(DecodeErrors, "exchange", exchange)
    met = []
    with NullLogger(recipe, data, total=10) as bystander:
        bystander.watch(0)
        for k in range(1, 11):
            bystander.after(step(k), waited=0.0)
            met.append(exchange.call_count)
        bystander.checkpoint(10)  # as when a signal came
    assert [k for k, (before, now) in enumerate(zip([0, *met], met, strict=False), start=1) if now > before] == sorted(
        checkpoint_steps(10, 4)
    )
    assert exchange.call_count == 5
    assert list(tmp_path.iterdir()) == []
