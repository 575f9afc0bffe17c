"""Refuse to run on versions of TVM that cannot work, before anything of TVM is imported.

An unpinned upgrade of ``apache-tvm-ffi`` would crash the process much later, inside ``save_json``.
"""

from __future__ import annotations

from importlib import metadata

TVM_RELEASE = (0, 27)
FFI_FROM, FFI_BELOW = (0, 1, 14), (0, 1, 15)
REQUIREMENTS = ["apache-tvm==0.27.0.post1", "apache-tvm-ffi>=0.1.14.post0,<0.1.15"]


def check_versions() -> None:
    """Check the installed versions.

    Raises
    ------
    ImportError
        Names both versions found, what is expected and the pip command that mends it.
    """
    tvm, ffi = _installed("apache-tvm"), _installed("apache-tvm-ffi")
    if _release(tvm)[:2] == TVM_RELEASE and FFI_FROM <= _release(ffi) < FFI_BELOW:
        return
    wanted = " ".join(f'"{requirement}"' for requirement in REQUIREMENTS)
    raise ImportError(
        f"tvm_sparse needs {REQUIREMENTS[0]} and {REQUIREMENTS[1]}, found apache-tvm {tvm or 'none'} "
        f"and apache-tvm-ffi {ffi or 'none'}; install them with: pip install {wanted}"
    )


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version, e.g. ``(0, 1, 14)`` for ``"0.1.14.post1"``."""
    numbers: list[int] = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
