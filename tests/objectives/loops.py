"""Sums over Python lists, for the formulas of papers written as loops."""

import math
from itertools import product


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def unit_row(x):
    return [a / math.sqrt(dot(x, x)) for a in x]


def cosine(x, y):
    return dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))


def log_determinant(A):
    """By elimination."""
    A, total = [row[:] for row in A], 0.0
    for k in range(len(A)):
        total += math.log(A[k][k])
        for i in range(k + 1, len(A)):
            factor = A[i][k] / A[k][k]
            A[i] = [a - factor * b for a, b in zip(A[i], A[k], strict=True)]
    return total


def mean_over_pairs(term, A, B):
    """Mean over the ordered pairs of different views, the first of A, the second of B, and over the samples."""
    pairs = [(v, w) for v, w in product(range(len(A)), range(len(B))) if v != w]
    return sum(term(a, b) for v, w in pairs for a, b in zip(A[v], B[w], strict=True)) / (len(pairs) * len(A[0]))


def hsic(Z, regularization, c):
    """SSL-HSIC with the kernel c/√(c² + ‖x − y‖²)."""
    rows = [(i, unit_row(row)) for view in Z.tolist() for i, row in enumerate(view)]
    n = len(rows)
    K = [[c / math.sqrt(c * c + math.dist(x, y) ** 2) for _, y in rows] for _, x in rows]
    mean = [sum(row) / n for row in K]
    total = sum(mean) / n
    positives = [K[a][b] for a in range(n) for b in range(n) if a != b and rows[a][0] == rows[b][0]]
    dependence = sum(positives) / len(positives) - total
    variance = sum((K[a][b] - mean[a] - mean[b] + total) ** 2 for a in range(n) for b in range(n)) / n**2
    return -dependence + regularization * math.sqrt(variance)
