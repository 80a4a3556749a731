#!/usr/bin/env bash
# Builds the programs next to it with an installed reshard, and runs them in the new directory BUILD.
#
#   tests/package/check.sh MODEL BUILD [CMAKE_OPTION…]
#
# MODEL is testdata/golden/optimum/llama-tp2-pp2/original.
set -euo pipefail

fail() {
  echo "tests/package/check.sh: $*" >&2
  exit 1
}

model=$1 build=$2
cmake -S "$(dirname "${BASH_SOURCE[0]}")" -B "$build" "${@:3}" >/dev/null
cmake --build "$build"
[[ "$("$build/list_tensors" "$model" | head -n 1)" == "model.embed_tokens.weight "* ]] ||
  fail "the consumer of the installed package does not see the tensors of $model"
(cd "$build" && ./custom_model) | grep -E '^model\.layers\.0\.mlp\.gate_up_proj\.weight +\[64, 64\]$' ||
  fail "the consumer of the installed package lays its model out otherwise"
"$build/shard_and_verify" "$model" "$build/shards" | grep -E '^[0-9a-f]{64}  model\.norm\.weight$' ||
  fail "the consumer of the installed package shards $model wrongly, or hashes it otherwise"
