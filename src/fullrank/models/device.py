"""The device on which a loaded MODEL computes."""

import torch

from fullrank.errors import UserError


def resolve_device(accelerator: str | torch.device = "auto") -> torch.device:
    """Return the device with this name; 'auto' is a GPU if there is a GPU.

    Raises:
        UserError: the device is not available.
    """
    if isinstance(accelerator, torch.device):
        return accelerator
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if accelerator == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if not isinstance(accelerator, str) or not available.get(accelerator.partition(":")[0]):
        names = ", ".join(name for name, is_available in available.items() if is_available)
        raise UserError(f"device '{accelerator}' is not available; choose from auto, {names}")
    return torch.device(accelerator)
