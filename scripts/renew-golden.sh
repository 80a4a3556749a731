#!/usr/bin/env bash
# Rewrites what the program prints: tests/apps/golden/*.txt and the ```console blocks of README.md and docs/. Look at
# the difference before it is committed. Wants a build, and builds what it needs in it.
#
#   scripts/renew-golden.sh [BUILD]    BUILD is build/dev unless given, or build/ci without that
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ -d build/dev ]] && build=build/dev || build=build/ci
build=${1:-$build}
cmake --build "$build" --target test_apps
RESHARD_RENEW_GOLDEN=1 "$build/tests/test_apps" "[renewed]"
git status --short -- tests/apps/golden README.md docs || true # which files changed
