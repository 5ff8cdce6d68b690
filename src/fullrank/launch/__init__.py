"""Devices and processes: which devices a run uses, how its processes start, and how signals stop them."""

from fullrank.launch.devices import launch_fabric, launched_world_size, resolve_devices
from fullrank.launch.signals import stop_on_signals

__all__ = ["launch_fabric", "launched_world_size", "resolve_devices", "stop_on_signals"]
