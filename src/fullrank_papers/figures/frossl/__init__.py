"""Figures of FroSSL: Skean et al. 2023 (the preprint: Tables 2 and 3, Fig. 4) and 2024 (ECCV)."""
