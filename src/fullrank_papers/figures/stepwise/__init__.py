"""Figures of Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning."""
