"""Figures of Skean et al. 2024, FroSSL."""
