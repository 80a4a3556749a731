#!/usr/bin/env bash
# Installs what BUILD (a folder such as build/release) holds into a temporary directory, and builds and runs programs
# that use the CMake package there.
#
#   scripts/check-package.sh BUILD
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "check-package.sh: $*" >&2
  exit 1
}

if [[ $# -ne 1 || "$1" == -* ]]; then
  echo "usage: scripts/check-package.sh BUILD" >&2
  exit 2
fi
prefix=$(mktemp --directory --tmpdir reshard-package-XXXXXX)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$1" --prefix "$prefix" >/dev/null
"$prefix/bin/reshard" --version
for file in man/man1/reshard.1 bash-completion/completions/reshard zsh/site-functions/_reshard \
  fish/vendor_completions.d/reshard.fish; do
  [[ -s "$prefix/share/$file" ]] || fail "share/$file is not installed"
done
tests/package/check.sh testdata/golden/optimum/llama-tp2-pp2/original "$prefix/package-build" \
  -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
