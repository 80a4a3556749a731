#!/usr/bin/env bash
# Fuzzes the readers of untrusted files, all at once, for SECONDS (20), from seeds made of testdata. Fails on any
# finding, and says where the input that shows it lies. Needs clang++ with its libFuzzer; installs nothing.
#
#   scripts/fuzz.sh [SECONDS]
#   BUILD=ci-asan-ubsan scripts/fuzz.sh     the fuzzers of another preset
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-20}
if [[ ! "$seconds" =~ ^[0-9]+$ ]]; then
  echo "usage: scripts/fuzz.sh [SECONDS]" >&2
  exit 2
fi
preset=${BUILD:-fuzz}
build=build/$preset
targets=(safetensors_header zip_directory pickle torch_file rank_files xser optimizer_file dcp_metadata json_files)

cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target fuzzers
"$build/tests/fuzz/make_seeds" "$build/seeds"

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/findings/$target"
  # What a run finds new goes to the first folder, so that the next run begins with it.
  "$build/tests/fuzz/fuzz_$target" "$build/corpus/$target" "$build/seeds/$target" -max_total_time="$seconds" \
    -timeout=10 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$target/" &>"$build/$target.log" &
  pids+=($!)
done
failed=()
for i in "${!targets[@]}"; do
  target=${targets[i]}
  log=$build/$target.log
  if wait "${pids[i]}"; then
    echo "== $target, $seconds s"
    grep '^stat::\(number_of_executed_units\|slowest_unit_time_sec\|peak_rss_mb\)' "$log"
  else
    failed+=("$target")
    tail -n 40 "$log" >&2
  fi
done
if ((${#failed[@]})); then
  echo "Findings: ${failed[*]}; the inputs are in $build/findings" >&2
  exit 1
fi
echo "No findings in ${#targets[@]} targets"
