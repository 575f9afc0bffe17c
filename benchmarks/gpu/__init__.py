"""The GPU benchmark kit: ``python -m benchmarks.gpu pack DIR``, ``dry-run`` and ``report RESULT.json``."""
