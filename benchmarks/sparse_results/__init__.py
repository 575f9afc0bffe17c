"""Kernels with sparse results against other libraries and hand-written loops: see :mod:`.__main__`."""
