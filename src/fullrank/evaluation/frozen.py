"""Moved to `fullrank.models.features`."""

from fullrank.models.features import restore_modes, state_hash, verify_frozen

__all__ = ["restore_modes", "state_hash", "verify_frozen"]
