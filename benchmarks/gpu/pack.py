"""The kit as a folder: kernels compiled for a GPU, TVM's runtime, graphs and the scripts that measure.

Everything in it is made here, without a GPU. It needs on the machine that measures: Python of a version it
was packed for, NumPy and PyTorch; CuPy, Triton and PyG are measured where they are.
"""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
import typing_extensions

import tvm_sparse
from tvm_sparse.runtime import minimal

from ..cuda_kernels import KernelCase, find_kernel
from ..matrices import from_folder

__all__ = ["LIMIT", "folder_bytes", "manifest_entry", "pack"]

#: The kit is at most this large, in bytes.
LIMIT = 60 << 20
_KIT = Path(__file__).parent / "kit"
_RUNTIME = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
#: What of ``tvm_ffi`` only compilers need.
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "3rdparty", "cython", "include", "share", "src", "*.pyi", "CMakeLists.txt"
)


def pack(
    folder: Path,
    cases: Sequence[KernelCase],
    *,
    arch: str = "sm_90",
    pythons: Iterable[str] = (),
    data: Path | None = None,
    jobs: int = 1,
) -> int:
    """Write the kit into a new or empty folder.

    Parameters
    ----------
    folder : pathlib.Path
        Where to.
    cases : sequence of KernelCase
        The kernels.
    arch : str
        The GPU that measures, such as ``"sm_90"``.
    pythons : iterable of str
        Versions of Python there, such as ``"3.12"``, beside the one that runs this.
    data : pathlib.Path, optional
        A folder of square matrices, as ``benchmarks.cpu --data`` takes it, to be measured on as well.
    jobs : int
        Processes that compile.

    Returns
    -------
    int
        Bytes in the folder.

    Raises
    ------
    ValueError
        If the folder is not empty, or the kit became too large.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"DIR: expected a new or an empty folder, found files in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    _copy_scripts(folder)
    _copy_runtime(folder / "runtime", pythons)
    if data is not None:
        _write_graphs(folder / "graphs", data)
    entries = _compile_all(folder / "kernels", cases, arch, jobs)
    listed = {"arch": arch, "version": tvm_sparse.__version__, "kernels": entries}
    (folder / "manifest.json").write_text(json.dumps(listed, indent=1))
    size = folder_bytes(folder)
    if size > LIMIT:
        raise ValueError(
            f"the kit has {size >> 20} MiB, more than {LIMIT >> 20}; give fewer kernels"
        )
    return size


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def manifest_entry(case: KernelCase, file: str, function: str) -> dict:
    """Return what the kit knows of a kernel."""
    layout = {}
    if getattr(case.formats, "buckets", None):
        layout["widths"] = list(case.formats.buckets)
        layout["column_parts"] = case.formats.column_parts
    if case.operator.startswith("bsr"):
        layout["block"] = case.formats.rows
    if case.operator.startswith("srbcrs"):
        layout |= {"t": case.formats.t, "g": case.formats.g}
    # Tensor cores multiply float32 as tf32.
    in_tf32 = case.tensor_cores and case.dtype == "float32"
    return {
        "name": case.name,
        "operator": case.operator,
        "variant": case.variant,
        "dtype": "tf32" if in_tf32 else case.dtype,
        "features": case.features,
        "tile": dict(case.tile),
        "layout": layout,
        "file": file,
        "function": function,
    }


def _copy_scripts(folder: Path) -> None:
    shutil.copytree(_KIT, folder / "kit", ignore=shutil.ignore_patterns("__pycache__", "run.sh"))
    shutil.copy(minimal.__file__, folder / "kit" / "minimal.py")
    shutil.copy(_KIT / "run.sh", folder / "run.sh")


def _copy_runtime(folder: Path, pythons: Iterable[str]) -> None:
    """Copy TVM's runtime libraries, and ``tvm_ffi`` for each version of Python."""
    folder.mkdir()
    for name in _RUNTIME:
        shutil.copy(Path(tvm.__file__).parent / "lib" / name, folder / name)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = Path(tvm_ffi.__file__).parent
    shutil.copytree(source, folder / f"python{own}" / "tvm_ffi", ignore=_LEFT_OUT)
    for version in pythons:
        if version != own:
            _download_ffi(folder / f"python{version}", version)
    for packages in folder.glob("python*"):
        shutil.copy(typing_extensions.__file__, packages / "typing_extensions.py")


def _download_ffi(folder: Path, version: str) -> None:
    """Get ``tvm_ffi`` for another version of Python."""
    wanted = f"apache-tvm-ffi=={importlib.metadata.version('apache-tvm-ffi')}"
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 24, 17)]
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
        command += [f"--platform={platform}" for platform in platforms]
        subprocess.run([*command, wanted], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(wheels) / "content")
        shutil.copytree(Path(wheels) / "content" / "tvm_ffi", folder / "tvm_ffi", ignore=_LEFT_OUT)


def _write_graphs(folder: Path, data: Path) -> None:
    folder.mkdir()
    for name, matrix in from_folder(data).items():
        columns = int(matrix.indices.max(initial=0))
        np.savez_compressed(
            folder / f"{name}.npz",
            indptr=matrix.indptr,
            indices=matrix.indices.astype(np.min_scalar_type(columns)),
            shape=np.array(matrix.shape),
        )


def _compile_all(folder: Path, cases: Sequence[KernelCase], arch: str, jobs: int) -> list[dict]:
    folder.mkdir()
    work = [(case.name, f"k{number:03d}.so", arch) for number, case in enumerate(cases)]
    if jobs == 1:
        functions = [_compile_case(folder, case, *item[1:]) for case, item in zip(cases, work)]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context) as pool:
            functions = list(pool.map(_compile_named, [folder] * len(work), *zip(*work)))
    return [
        manifest_entry(case, file, function)
        for case, (_, file, _), function in zip(cases, work, functions)
        if function is not None
    ]


def _compile_named(folder: Path, name: str, file: str, arch: str) -> str | None:
    return _compile_case(folder, find_kernel(name), file, arch)


def _compile_case(folder: Path, case: KernelCase, file: str, arch: str) -> str | None:
    """Export a kernel; return the name of its function, None for tile sizes that do not suit it."""
    target = {"kind": "cuda", "arch": arch}
    try:
        executable = tvm_sparse.compile(case.build(), target)
        executable.export_library(folder / file)
    except Exception as error:
        if case.is_default:
            raise
        print(f"{case.name} is left out: {str(error).splitlines()[0][:200]}")
        return None
    (function,) = executable.functions
    return function
