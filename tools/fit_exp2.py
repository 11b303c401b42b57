#!/usr/bin/env python3
"""Fits the exp2 polynomial of src/kernels/math.h: degree 6 on [-1/2, 1/2], p(0) = 1 exactly, least maximum relative
error (weighted least squares, reweighted until the error is level), coefficients rounded to FP32 from the lowest up.

    pip install numpy && python tools/fit_exp2.py
"""
import numpy as np

x = np.cos(np.linspace(0, np.pi, 4001)) / 2
target = np.exp2(x)
fixed = {0: np.float64(1)}
for lowest in range(1, 7):
    weight = np.ones_like(x)
    free = list(range(lowest, 7))
    rest = target - sum(c * x**i for i, c in fixed.items())
    basis = np.stack([x**i for i in free], 1)
    for _ in range(200):
        w = weight / target
        solution = np.linalg.lstsq(basis * w[:, None], rest * w, rcond=None)[0]
        error = np.abs((basis @ solution - rest) / target)
        weight *= (0.2 + error / error.max()) ** 0.2
        weight /= weight.mean()
    fixed[lowest] = np.float64(np.float32(solution[0]))
worst = np.abs(sum(c * x**i for i, c in fixed.items()) / target - 1).max()
print(", ".join(f"{np.float32(fixed[i]):.9g}f" for i in range(7)))
print(f"worst relative error of the polynomial in exact arithmetic: {worst:.2e} (2^-24 = {2.0**-24:.2e})")
