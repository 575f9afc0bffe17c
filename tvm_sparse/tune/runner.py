"""Build and measure candidates in worker processes, on the user's own arrays.

MetaSchedule's runner would fill every argument, index arrays included, with random numbers. Here the real
inputs are saved once; each worker loads them, fills the outputs with NaN, checks the candidate's result
against the untuned kernel's and only then times it. A candidate that crashes, hangs or is wrong costs one
trial, not the process.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from .timing import same_result

__all__ = ["MeasureOptions", "SavedArguments", "make_builder", "make_runner"]


@dataclass(frozen=True)
class MeasureOptions:
    """How a candidate is timed.

    Attributes
    ----------
    repeat : int
        Number of timings; the median counts.
    min_repeat_ms : int
        Least duration of one timing, in milliseconds.
    flush_cache : bool
        Whether to flush the cache before every run.
    timeout : float
        Seconds after which a candidate is given up.
    num_threads : int, optional
        Threads of the worker's kernels; all cores by default.
    rtol : float
        Largest difference from the untuned kernel's result, relative to the largest value of it.
    """

    repeat: int = 3
    min_repeat_ms: int = 20
    flush_cache: bool = False
    timeout: float = 60.0
    num_threads: int | None = None
    rtol: float = 1e-3


class SavedArguments:
    """The complete argument list of a kernel, on disk, with the results that are expected.

    Parameters
    ----------
    path : pathlib.Path
        An ``.npz`` file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(
        self,
        arguments: list[np.ndarray | int],
        outputs: list[int],
        slots: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        """Write the arguments of a finished call; those at positions `outputs` are its results.

        Of results that are packed, `slots` says by position where entries are; padding is not compared.
        """
        arrays = {f"arg_{k}": _portable(value) for k, value in enumerate(arguments)}
        arrays |= {f"slots_{k}": found for k, found in (slots or {}).items()}
        dtypes = [str(getattr(value, "dtype", "scalar")) for value in arguments]
        partial = self.path.with_suffix(".partial.npz")
        np.savez(partial, outputs=np.array(outputs, np.int64), dtypes=np.array(dtypes), **arrays)
        os.replace(partial, self.path)

    def load(self) -> tuple[list[np.ndarray], dict[int, np.ndarray | None]]:
        """Return the buffer arguments, and which are outputs.

        Scalars are bound in the kernel, so places are those among buffers. An output comes with the
        slots to compare, None for all.
        """
        with np.load(self.path) as stored:
            dtypes = [str(d) for d in stored["dtypes"]]
            buffers = [k for k, dtype in enumerate(dtypes) if dtype != "scalar"]
            arrays = [stored[f"arg_{k}"].view(_dtype(dtypes[k])) for k in buffers]
            outputs = {
                buffers.index(k): stored.get(f"slots_{k}") for k in map(int, stored["outputs"])
            }
        return arrays, outputs


def make_builder(options: MeasureOptions) -> ms.builder.LocalBuilder:
    """Return a builder that compiles through the ``tvm_sparse`` pipeline."""
    return ms.builder.LocalBuilder(
        timeout_sec=options.timeout,
        f_build=_build,
        f_export=_export,
        max_workers=max(1, (os.cpu_count() or 2) // 2),
        initializer=_import_package,
    )


def make_runner(arguments: SavedArguments, options: MeasureOptions) -> ms.runner.LocalRunner:
    """Return a runner that measures on saved arguments."""
    return ms.runner.LocalRunner(
        timeout_sec=options.timeout,
        evaluator_config=ms.runner.EvaluatorConfig(
            number=1,
            repeat=options.repeat,
            min_repeat_ms=options.min_repeat_ms,
            enable_cpu_cache_flush=options.flush_cache,
        ),
        f_alloc_argument=functools.partial(_load_arguments, str(arguments.path)),
        f_run_evaluator=functools.partial(_check_and_time, str(arguments.path), options),
        initializer=_import_package,
    )


# What follows runs in the workers.


def _import_package() -> None:
    import tvm_sparse  # noqa: F401, PLC0415 (registers node types and the pipeline)


def _build(mod: tvm.IRModule, target: tvm.target.Target, _params) -> tvm.runtime.Executable:
    from ..runtime import add_launcher_entry  # noqa: PLC0415
    from ..runtime.device_code import compiling_for_cuda  # noqa: PLC0415

    with compiling_for_cuda(target):
        return tvm.compile(add_launcher_entry(mod), target=target, tir_pipeline="tvm_sparse")


def _export(executable: tvm.runtime.Executable) -> str:
    path = Path(tempfile.mkdtemp(prefix="tvm_sparse_")) / "candidate.so"
    executable.export_library(str(path))
    return str(path)


def _load_arguments(path: str, device, _args_info, alloc_repeat: int) -> list[list]:
    arrays, outputs = SavedArguments(Path(path)).load()
    tensors = []
    for k, array in enumerate(arrays):
        value = _poisoned(array) if k in outputs else array
        tensors.append(tvm.runtime.tensor(value, device=device))
    return [tensors] * alloc_repeat


def _check_and_time(path: str, options: MeasureOptions, module, device, config, repeated) -> list:
    from ..runtime import set_num_threads  # noqa: PLC0415
    from ..runtime.threads import attach_process_launcher  # noqa: PLC0415

    attach_process_launcher(module)
    if options.num_threads is not None:
        set_num_threads(options.num_threads)
    expected, outputs = SavedArguments(Path(path)).load()
    (arguments,) = repeated
    module[module.entry_name if hasattr(module, "entry_name") else "main"](*arguments)
    for k, slots in outputs.items():
        if not same_result(arguments[k].numpy(), expected[k], options.rtol, slots):
            raise ValueError("the candidate's result differs from the untuned kernel's")
    costs = ms.runner.utils.run_evaluator_common(module, device, config, [arguments])
    return [float(np.median(costs))]


def _poisoned(array: np.ndarray) -> np.ndarray:
    poisoned = array.copy()
    poisoned.view(np.uint8)[...] = 0xFF
    return poisoned


def _portable(value: np.ndarray | int) -> np.ndarray:
    """NumPy files know no bfloat16; such arrays are stored as integers of the same size."""
    array = np.ascontiguousarray(value)
    return array.view(np.uint16) if str(array.dtype) == "bfloat16" else array


def _dtype(name: str) -> np.dtype:
    from ..runtime.arrays import numpy_dtype  # noqa: PLC0415

    return numpy_dtype(name)
