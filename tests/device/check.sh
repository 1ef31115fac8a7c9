#!/usr/bin/env bash
# The agent on a real GPU, in under three minutes: `tests/device/check.sh`. Exit code 0: all checks hold.
#
# Needs Python 3.11 and the NVIDIA driver (libnvidia-ml.so.1, libcuda.so.1, nvidia-smi). What else it needs it installs into .venv,
# unless that has it: from a package index, or without network from a directory of wheels that WHEELS names, made elsewhere with
#   pip wheel --wheel-dir DIR '.[local,agent]' hatchling editables
# `tests/device/check.sh --stand-in` runs the same checks without a GPU, on a library that stands in for NVML.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-.venv/bin/python}"
needed='import duckdb, grpclib, msgspec, nats, numpy, pynvml, typer, uvloop'
if ! "$python" -c "$needed" 2>/dev/null; then
    echo "setting up .venv"
    [ -x .venv/bin/python ] || "${BASE_PYTHON:-python3}" -m venv .venv
    python=.venv/bin/python
    offline=()
    [ -z "${WHEELS:-}" ] || offline=(--no-index --find-links "$WHEELS")
    "$python" -m pip --quiet --disable-pip-version-check install "${offline[@]}" --editable '.[local,agent]'
fi
exec timeout 170 "$python" -m tests.device.check "$@"
