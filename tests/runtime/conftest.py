"""Fixtures of the runtime's tests."""

import numpy as np
import pytest
import scipy.sparse as sp
from runtime_kernels import (
    DOUBLE,
    SDDMM,
    SELECT,
    SPMM,
    WIDE_SPMV,
    build,
    double_bf16_kernel,
    sddmm_kernel,
    select_kernel,
    spmm_kernel,
    wide_spmv_kernel,
)

from tvm_sparse.runtime import set_num_threads


@pytest.fixture(scope="session")
def kernels():
    """All kernels of this file, in one executable."""
    return build(
        {
            "spmm": (spmm_kernel, SPMM),
            "wide_spmv": (wide_spmv_kernel, WIDE_SPMV),
            "sddmm": (sddmm_kernel, SDDMM),
            "double": (double_bf16_kernel, DOUBLE),
            "select": (select_kernel, SELECT),
        }
    )


@pytest.fixture
def spmm(kernels):
    return kernels["spmm"]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def default_threads():
    """Leave the process with the default number of threads."""
    yield
    set_num_threads(None)


@pytest.fixture
def product():
    """float64 reference of a sparse-dense product."""

    def reference(matrix, dense):
        return sp.csr_matrix(matrix, dtype="f8").toarray() @ np.asarray(dense, "f8")

    return reference
