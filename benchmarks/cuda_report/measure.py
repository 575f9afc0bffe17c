"""What one compiler makes of one kernel for one architecture, as a dictionary that JSON takes.

In: a case of :mod:`benchmarks.cuda_kernels`. Out: for each kernel of its module registers, spills, shared
memory, occupancy, access widths and, where an entry has a minimum, the cost of an entry beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..cuda_kernels import KernelCase, find_kernel
from .bounds import sddmm_minimum, spmm_minimum
from .compilers import compilers
from .cubin import read_resources
from .device_code import DeviceCode, Launch, device_code
from .loops import entry_cost
from .occupancy import occupancy
from .sass import Instruction, accesses, disassemble

__all__ = ["WITHIN", "failures", "kernel_facts", "measure", "measure_named"]

#: An inner loop may cost this much more than the minimum of its operation.
WITHIN = 1.3
_WARP = 32


def measure(case: KernelCase, arch: str, compiler: str) -> dict[str, Any]:
    """Compile a case and read the result.

    Parameters
    ----------
    case : KernelCase
        The kernel.
    arch : str
        Such as ``"sm_90"``.
    compiler : str
        A key of :func:`benchmarks.cuda_report.compilers.compilers`.

    Returns
    -------
    dict
        ``name, arch, compiler``, ``kernels`` and ``failures``: claims that don't hold, as text.
    """
    (row,) = _rows(case, [arch], [compiler])
    return row


def measure_named(item: tuple[str, Sequence[str], Sequence[str]]) -> list[dict[str, Any]]:
    """Measure the case of a name for architectures with compilers; each of the former lowers it once."""
    name, arches, names = item
    return _rows(find_kernel(name), arches, names)


def _rows(case: KernelCase, arches: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for arch in arches:
        code = _device_code(case, arch)
        for name in names:
            row: dict[str, Any] = {"name": case.name, "arch": arch, "compiler": name, "kernels": []}
            try:
                if isinstance(code, Exception):
                    raise code
                row["kernels"] = kernel_facts(
                    code, compilers()[name](code.source, arch), arch, case
                )
                row["failures"] = failures(case, row["kernels"])
            except Exception as error:  # one that fails shall not hide the others
                first = (str(error).splitlines() or [type(error).__name__])[0]
                row["failures"] = [f"does not compile: {first}"]
            rows.append(row)
    return rows


def _device_code(case: KernelCase, arch: str) -> DeviceCode | Exception:
    try:
        return device_code(case.build(), arch)
    except Exception as error:
        return error


def kernel_facts(
    code: DeviceCode, cubin: bytes, arch: str, case: KernelCase
) -> list[dict[str, Any]]:
    """Return what is known of each kernel of a cubin."""
    listings = disassemble(cubin)
    found = []
    for kernel, resources in read_resources(cubin).items():
        launch = code.launches[kernel]
        seen = accesses(listings[kernel])
        shared = resources.shared + launch.dynamic_shared
        facts = {
            "kernel": kernel,
            "threads": launch.block_size,
            "registers": resources.registers,
            "stack": resources.stack,
            "static_shared": resources.shared,
            "dynamic_shared": launch.dynamic_shared,
            "occupancy": occupancy(arch, launch.block_size, resources.registers, shared),
            "instructions": len(listings[kernel]),
            **{name: _plain(counted) for name, counted in vars(seen).items()},
        }
        if case.bounded and (entry := _entry(case, listings[kernel], launch)):
            facts["entry"] = entry
        found.append(facts)
    return found


def failures(case: KernelCase, kernels: list[dict[str, Any]]) -> list[str]:
    """Return what a case claims, or a default must hold, and doesn't."""
    found = []
    for facts in kernels:
        spills = facts["spill_loads"] + facts["spill_stores"]
        if spills or facts["stack"]:
            found.append(f"{facts['kernel']} has {facts['stack']} bytes of stack, {spills} spills")
        if not facts["occupancy"]:
            found.append(f"{facts['kernel']} does not fit a multiprocessor")
    if case.wide_loads and not any(
        facts["loads"].get(128) or facts["async_copies"].get(128) for facts in kernels
    ):
        found.append("no 128-bit load")
    if case.tensor_cores and not any(facts["tensor_cores"] for facts in kernels):
        found.append("no tensor-core instruction")
    if case.bounded:
        found += _beyond_minimum([facts["entry"] for facts in kernels if "entry" in facts])
    return found


def _plain(counted: Any) -> Any:
    return dict(counted) if isinstance(counted, dict) else counted


def _beyond_minimum(entries: list[dict[str, Any]]) -> list[str]:
    if not entries:
        return ["no inner loop over entries found"]
    found = []
    for entry in entries:
        for what in ("bytes", "instructions"):
            if entry[f"{what}_ratio"] > WITHIN:
                found.append(f"{entry[f'{what}_ratio']:.2f} times the least {what} of an entry")
    return found


def _entry(case: KernelCase, code: list[Instruction], launch: Launch) -> dict[str, Any] | None:
    cost = entry_cost(code, launch.threads[0], case.features or 1, case.index_bytes)
    if cost is None:
        return None
    lanes = round(_WARP / cost.groups)
    sizes = (case.features, case.value_bytes, case.index_bytes, lanes)
    if case.operator == "sddmm":
        least = sddmm_minimum(*sizes)
    else:
        least = spmm_minimum(*sizes, padded=case.formats is not None)
    return {
        **asdict(cost),
        "least_bytes": least.loaded_bytes,
        "least_instructions": least.instructions,
        "bytes_ratio": cost.loaded_bytes / least.loaded_bytes,
        "instructions_ratio": cost.instructions / least.instructions,
    }
