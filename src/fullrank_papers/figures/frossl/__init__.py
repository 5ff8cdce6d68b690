"""Figures of FroSSL: Skean et al. 2023, the preprint."""
