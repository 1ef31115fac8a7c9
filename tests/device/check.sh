#!/usr/bin/env bash
# The agent on a real GPU, in under three minutes: `tests/device/check.sh`, with the environment of `make test` in .venv.
# Needs the NVIDIA driver (libnvidia-ml.so.1, libcuda.so.1, nvidia-smi) and nothing else. Exit code 0: all checks hold.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec timeout 170 "${PYTHON:-.venv/bin/python}" -m tests.device.check
