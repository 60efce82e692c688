#!/bin/sh
# Install the CPU build of torch that requirements/torch-cpu.txt names.
#
# Usage: scripts/torch.sh INSTALLER...     e.g. scripts/torch.sh .venv/bin/python -m pip install
#                                               scripts/torch.sh uv pip install
#
# The installer may have it at hand (a mirror, a folder of wheels); if not, it is fetched from where PyTorch publishes it.
# The general index has CUDA builds only, of several gigabytes: the version's "+cpu" keeps them out.
set -eu
cd "$(dirname "$0")/.."

readonly TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# In an image uv is told to leave torch out of everything else.
unset UV_EXCLUDE
export UV_NO_CONFIG=1

if "$@" -qq --dry-run --no-deps -r requirements/torch-cpu.txt >/dev/null 2>&1; then
    exec "$@" --no-deps -r requirements/torch-cpu.txt
fi
exec "$@" --no-deps --index-url "$TORCH_CPU_INDEX" -r requirements/torch-cpu.txt
