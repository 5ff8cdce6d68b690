"""Forward and backward pass of some objectives in closed form, where autograd would make more products, passes and
temporaries than the mathematics needs. See `fullrank.objectives.faster`, and `benchmarks/results/fast.json` for the
gains; without this folder, every objective has the same value.
"""
