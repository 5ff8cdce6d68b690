"""Figures of Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning
(DirectCLR).
"""
