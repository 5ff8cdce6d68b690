"""Devices and processes: which devices a run uses, how its processes are started, and how signals stop them."""
