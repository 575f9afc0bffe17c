"""The command line: ``tvm-sparse`` or ``python -m tvm_sparse``."""

import sys

from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
