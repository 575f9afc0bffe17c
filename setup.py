"""Installation: a pure Python package on the stock ``apache-tvm`` wheel."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

setup(
    name="tvm_sparse",
    version="0.1.0",
    description="Sparse kernels on TVM: write over coordinates, schedule, tune, export",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    # `schedules/` stands beside the package; a link makes it part of it, installed or not.
    packages=find_packages(include=["tvm_sparse", "tvm_sparse.*"]),
    package_data={"tvm_sparse": ["py.typed"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "apache-tvm==0.27.0.post1",
        "apache-tvm-ffi>=0.1.14.post0,<0.1.15",
        "cloudpickle",
        "matplotlib",
        "numpy",
        "psutil",
        "rich",
        "scipy",
        "tornado",
        "xgboost",
    ],
    extras_require={
        "test": ["hypothesis", "ml_dtypes", "pytest", "pytest-timeout", "pytest-xdist", "ruff"],
        "bench": ["mkl", "numba", "threadpoolctl"],
        # The compiler of CUDA code, its headers, what joins code for several architectures, and the
        # runtime, of the version that TVM's own is linked with.
        "cuda": [
            "cuda-bindings>=13,<14",
            "nvidia-cuda-cccl>=13,<14",
            "nvidia-cuda-crt>=13,<14",
            "nvidia-cuda-nvrtc>=13,<14",
            "nvidia-cuda-runtime>=13,<14",
            "nvidia-nvfatbin>=13,<14",
        ],
    },
    entry_points={"console_scripts": ["tvm-sparse = tvm_sparse.__main__:main"]},
)
