"""Figures of Esser et al. 2023, Representation Learning Dynamics of Self-Supervised Models."""
