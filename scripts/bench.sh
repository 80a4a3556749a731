#!/usr/bin/env bash
# Measures shard and consolidate next to cp -r and a parallel copy of the same bytes, and what planning costs.
#
#   scripts/bench.sh                        a model of 2 GB, all cases: tables of medians, for half an hour
#   scripts/bench.sh --size 8 --json        a larger one; one JSON document with every run
#   scripts/bench.sh --only 'shard tp8 s'   only the cases whose name this regular expression matches
#   scripts/bench.sh --cold                 from an empty page cache, as root
#   scripts/bench.sh --planning             dry runs of models of 405 and 671 billion parameters, headers alone
#   scripts/bench.sh --ranks 2 --size 8     two ranks of one thread, by mpirun, next to one process of two threads
#   scripts/bench.sh --journal --size 5     a journal every second next to none
#   scripts/bench.sh --dcp --size 5         torch.distributed.checkpoint with Adam's states; --torch PYTHON for its tool
#   scripts/bench.sh --nxdi --size 5        pre-sharding for NxD Inference; --numpy PYTHON for a script with numpy next to it
#   scripts/bench.sh --card                 split, concat and transpose next to memcpy and xtensor: the tables of docs/benchmarks.md
#   scripts/bench.sh --zero1 --size 5       NxD's training checkpoints with ZeRO-1's states, to other ranks
#   scripts/bench.sh --help                 all options
#
# Installs what is missing and builds first. Works in a directory of its own under --dir, or ${TMPDIR:-/tmp}, that needs
# 3.5 times the model's size and goes away at the end. The exit code says whether all ran, not how fast.
set -euo pipefail
caller_dir=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source_dir=$PWD

previous=
for argument in "$@"; do # a wrong one is told before the build
  dir=
  if [[ $previous == --dir ]]; then dir=$argument; fi
  if [[ $argument == --dir=* ]]; then dir=${argument#--dir=}; fi
  if [[ -n $dir && ! -d $dir ]]; then
    echo "bench.sh: --dir: there is no directory $dir" >&2
    exit 2
  fi
  previous=$argument
done

target=bench_files
if [[ ${1:-} == --card ]]; then
  target=bench_card
  if (($# > 1)); then
    echo "bench.sh: --card takes no other options" >&2
    exit 2
  fi
fi

scripts/install-packages.sh >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Building into build/release; this takes a few minutes" >&2
if ! { cmake --preset release -DRESHARD_BUILD_TESTS=ON && cmake --build --preset release --target "$target"; } \
  >"$log" 2>&1; then
  cat "$log" >&2
  echo "bench.sh: the build failed" >&2
  exit 1
fi
rm -f "$log"

revision=$(git describe --always --dirty 2>/dev/null || true)
if [[ $target == bench_card ]]; then
  exec build/release/apps/bench/bench_card "$revision"
fi
cd "$caller_dir" # paths among the options are the caller's
exec "$source_dir/build/release/apps/bench/bench_files" --revision "$revision" "$@"
