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
cmake -S tests/package -B "$prefix/package-build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$prefix/package-build"
model=testdata/golden/optimum/llama-tp2-pp2/original
[[ "$("$prefix/package-build/list_tensors" "$model" | head -n 1)" == "model.embed_tokens.weight "* ]] ||
  fail "the consumer of the installed package does not see the tensors of $model"
(cd "$prefix/package-build" && ./custom_model) | grep -E '^model\.layers\.0\.mlp\.gate_up_proj\.weight +\[64, 64\]$' ||
  fail "the consumer of the installed package lays its model out otherwise"
