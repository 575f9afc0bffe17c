"""Entry points of emulated kernels: C++ that takes a call of TVM's FFI to a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rewrite import KernelText, rewrite

__all__ = ["SHARED_LIMITS", "kernel_module", "shared_limit"]

# Bytes of shared memory that a block may have, by architecture.
SHARED_LIMITS = {
    "sm_70": 96 * 1024,
    "sm_75": 64 * 1024,
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_87": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
}
DEFAULT_TAGS = tuple(f"{what}.{axis}" for what in ("blockIdx", "threadIdx") for axis in "xyz")


def shared_limit(arch: str) -> int:
    """Return the bytes of shared memory that a block may have."""
    return SHARED_LIMITS.get(arch.rstrip("af"), 48 * 1024)


def kernel_module(
    source: str, arch: str, tags: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, list[KernelText]]:
    """Return C++ with the kernels of a CUDA C text and an entry point for each.

    Parameters
    ----------
    source : str
        CUDA C.
    arch : str
        Such as ``"sm_80"``: sets how much shared memory there is.
    tags : mapping, optional
        The launch parameters of each kernel, in the order in which they follow its arguments; without,
        the three extents of the grid, the three of the block, and the bytes of dynamic shared memory.
    """
    text, granule, kernels = rewrite(source)
    default = [*DEFAULT_TAGS, "dynamic"]
    parts = ['#line 1 "kernels.cu"', text, '#line 1 "entries"']
    for kernel in kernels:
        parts.append(
            _entry(
                kernel, granule, shared_limit(arch), list((tags or {}).get(kernel.name, default))
            )
        )
    return "\n".join(parts) + "\n", kernels


def _entry(kernel: KernelText, granule: int, limit: int, tags: Sequence[str]) -> str:
    fields, values = [], []
    for place, parameter in enumerate(kernel.parameters):
        kind = f"::emulation::Ptr<{parameter.type}>" if parameter.is_pointer else parameter.type
        read = "pointer" if parameter.is_pointer else "scalar"
        fields.append(f"  {kind} {parameter.name};")
        values.append(f'    call.{read}<{parameter.type}>({place}, "{parameter.name}"),')
    names = ", ".join(f"all.{parameter.name}" for parameter in kernel.parameters)
    quoted = ", ".join(f'"{tag}"' for tag in tags)
    return "\n".join(
        [
            f"namespace {{ struct {kernel.name}_parameters {{",
            *fields,
            "}; }",
            f'extern "C" int __tvm_ffi_{kernel.name}(void*, const TVMFFIAny* arguments, int32_t count, '
            "TVMFFIAny* result) {",
            f'  static ::emulation::Kernel kernel{{"{kernel.name}", {kernel.largest_block}, {limit}, '
            f"{len(kernel.parameters)}, {granule}}};",
            "  ::emulation::Call call(kernel, arguments, count);",
            f"  {kernel.name}_parameters parameters{{",
            *values,
            "  };",
            f"  static const char* const tags[] = {{{quoted or '0'}}};",
            f"  call.extents(tags, {len(tags)});",
            "  result->type_index = 0; result->v_int64 = 0;",
            "  return call.run([](const void* given) {",
            f"    auto& all = *static_cast<const {kernel.name}_parameters*>(given);",
            f"    {kernel.name}({names});",
            "  }, &parameters);",
            "}",
        ]
    )
