#!/usr/bin/env bash
# Measures the kernels of this folder on the first GPU; no network. Options: ./run.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" -m kit "$@"
