"""Settings shared by all tests: how many programs the property tests draw."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tvm_sparse",
    max_examples=int(os.environ.get("TVM_SPARSE_RANDOM_PROGRAMS", "300")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tvm_sparse")
