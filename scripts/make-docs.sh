#!/usr/bin/env bash
# Writes anew what README.md and docs/ take from the program and the sources: the ```console blocks (its help and its
# examples), and the C++ that stands between `<!-- from FILE -->` and the end of the block after it. Tests fail where the
# documents are stale.
#
#   scripts/make-docs.sh [BUILD]    BUILD is build/dev unless given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:-build/dev}
cmake --build "$build" --target test_apps
RESHARD_RENEW_GOLDEN=1 "$build/tests/test_apps" "[docs]"
git status --short -- README.md docs || true # which files changed
