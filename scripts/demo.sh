#!/usr/bin/env bash
# Shards a model, looks at the shards, puts it together again, takes it to torch's format and back, and compares every
# byte.
#
#   scripts/demo.sh                          a small model from testdata/, TP 4 × PP 2
#   TP=8 PP=1 scripts/demo.sh MODEL_DIR      a Hugging Face checkpoint of your own
#   BUILD=dev scripts/demo.sh                with what is built in build/dev
#
# Installs what is missing and builds first, about three minutes on two cores. Works in a temporary directory under
# ${TMPDIR:-/tmp} that needs twice the model's size and goes away at the end.
set -euo pipefail
caller_dir=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "demo.sh: $*" >&2
  exit 1
}

step() {
  printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"
}

if [[ $# -gt 1 || "${1:-}" == -* ]]; then
  echo "usage: [TP=N] [PP=N] [BUILD=PRESET] scripts/demo.sh [MODEL_DIR]" >&2
  exit 2
elif [[ $# -eq 1 ]]; then
  model=$(cd "$caller_dir" && cd "$1" 2>/dev/null && pwd) || fail "$1 is not a directory"
  tp=${TP:-2}
  pp=${PP:-1}
else
  model=testdata/golden/optimum/qwen3-tp4-pp3-gqa/original
  tp=${TP:-4}
  pp=${PP:-2}
fi

shopt -s nullglob
weights=("$model"/*.safetensors)
((${#weights[@]})) || fail "$model holds no .safetensors files"
model_bytes=$(du --dereference --bytes --total "${weights[@]}" | tail -n 1 | cut -f 1)

work=$(mktemp --directory --tmpdir reshard-demo-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# The model twice at any time, once as shards, in which several files contain the replicated tensors.
need_bytes=$((model_bytes * 22 / 10 + 100000000))
free_bytes=$(df --output=avail --block-size=1 "$work" | tail -n 1)
if ((free_bytes < need_bytes)); then
  fail "$(dirname "$work") has $((free_bytes / 1000000)) MB free, the demo of this model needs about" \
    "$((need_bytes / 1000000)) MB; set TMPDIR to a directory with more room"
fi

if [[ -z "${BUILD:-}" ]]; then
  BUILD=release
  step "Packages, by apt: a minute or two if any is missing"
  scripts/install-packages.sh
  step "Building into build/release: about 3 minutes on 2 cores; what is built already is not built again"
  cmake --preset release >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log" >&2 && fail "CMake failed"; }
  NINJA_STATUS='[%f of %t, %e s] ' cmake --build --preset release --target reshard compare_checkpoints ||
    fail "the build failed"
fi
PATH=$PWD/build/$BUILD/apps/reshard:$PWD/build/$BUILD/apps/tools:$PATH
command -v reshard compare_checkpoints >/dev/null || fail "build/$BUILD holds no reshard and compare_checkpoints"

run() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

# Whether the directory $1 contains the model that went in; compare_checkpoints shares no code with reshard.
check_same() {
  if [[ -f $model/model.safetensors ]] && cmp --silent "$model/model.safetensors" "$1/model.safetensors"; then
    verdict="the file is the same, byte for byte"
  else
    # Cut into files elsewhere, or written by another program: the same tensors in other places.
    run compare_checkpoints "$model" "$1" || fail "the model that came back is not the one that went in"
    verdict="every tensor is the same, byte for byte"
  fi
}

one_file=()
if [[ -f $model/model.safetensors ]]; then
  one_file=(--max-shard-size "$model_bytes") # again, however large
fi

lasts="a second"
((model_bytes < 100000000)) || lasts="as long as copying $((model_bytes / 1000000)) MB twice and comparing them twice"
step "Into TP $tp x PP $pp shards and back: $lasts"
run reshard inspect "$model"
run reshard shard "$model" "$work/sharded" --tp "$tp" --pp "$pp"
run reshard inspect "$work/sharded"
run reshard verify "$model" "$work/sharded" || fail "the shards do not hold the model"
run reshard consolidate "$work/sharded" "$work/whole" "${one_file[@]}"
for file in config.json generation_config.json tokenizer.json; do
  [[ ! -f $model/$file ]] || cmp "$model/$file" "$work/whole/$file" || fail "$file came back different"
done
check_same "$work/whole"
rm -r "$work/whole" # room for the next

step "Into torch's files and back: as long again"
run reshard convert "$work/sharded" "$work/pytorch" --format pytorch
rm -r "$work/sharded"
run reshard verify "$model" "$work/pytorch" || fail "torch's files do not hold the model"
run reshard convert "$work/pytorch" "$work/again" "${one_file[@]}"
check_same "$work/again"
echo
echo "Demo passed: $model went into TP $tp x PP $pp shards and came back, and into torch's files and back; $verdict. It took $SECONDS s."
