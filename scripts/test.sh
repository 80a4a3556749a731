#!/usr/bin/env bash
# Installs what is needed, builds everything, and runs all tests, with a sixteenth of the random models. Goes on from where
# build/PRESET stands.
#
#   scripts/test.sh                         the program of build/release, and its tests
#   scripts/test.sh ci                      as each change is checked: with clang, and warnings are errors
#   RESHARD_TEST_SHARE=1 scripts/test.sh    with all random models
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
if [[ $# -gt 1 || ! "$preset" =~ ^(release|ci)$ ]]; then
  echo "usage: [RESHARD_TEST_SHARE=N] scripts/test.sh [ci]" >&2
  exit 2
elif [[ $preset == ci ]]; then
  scripts/install-packages.sh --tests
else
  scripts/install-packages.sh
fi
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_SLOPPINESS=pch_defines,time_macros # for precompiled headers
fi
if command -v ld.lld >/dev/null; then
  export LDFLAGS=-fuse-ld=lld # for CMake; the tests are a dozen large programs
fi
export RESHARD_TEST_SHARE="${RESHARD_TEST_SHARE:-16}"

cmake --preset "$preset" -DRESHARD_BUILD_TESTS=ON -URESHARD_TEST_FLOORS
cmake --build --preset "$preset"

# The engine's on a disk; all others make and remove thousands of small directories, which takes less time in memory.
ctest --preset "$preset" --parallel "$(nproc)" --tests-regex '^engine:'
in_memory=${TMPDIR:-/tmp}
if [[ "$(stat --file-system --format=%T /dev/shm 2>/dev/null)" == tmpfs ]] &&
  (($(df --output=avail -k /dev/shm | tail -n 1) > 8000000)); then
  in_memory=/dev/shm
fi
TMPDIR=$in_memory ctest --preset "$preset" --parallel "$(nproc)" --exclude-regex '^engine:'
