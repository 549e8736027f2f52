#!/bin/sh
# Checks the method on a CUDA device in under 5 minutes, from a checkout with nothing installed but torch, torchvision and
# numpy: views equal to the CPU's, an exact bf16 teacher, a training round, then the cost of a step.
#
#   benchmarks/gpu_check.sh [OUTPUT.json]
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1
python="${PYTHON:-python3}"

"$python" benchmarks/gpu_check.py
exec "$python" benchmarks/step_cost.py --device cuda --json "${1:-/dev/null}"
