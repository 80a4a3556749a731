#!/usr/bin/env bash
# Installs what is needed, builds with warnings as errors, and runs all tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install-packages.sh
cmake --preset dev
cmake --build --preset dev
ctest --preset dev --parallel "$(nproc)"
