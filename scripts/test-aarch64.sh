#!/usr/bin/env bash
# Compiles for arm64 with Debian's cross compiler, and runs under qemu-aarch64: the tests of the floors that read files, and
# the program, which shards and consolidates a model. Installs what is missing as root, for which dpkg gets the architecture
# arm64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "test-aarch64.sh: $*" >&2
  exit 1
}

scripts/install-packages.sh --tests
libraries=(libdeflate-dev libfmt-dev libhwy-dev libre2-dev libssl-dev libxxhash-dev libzstd-dev zlib1g-dev)
if ! dpkg-query --show "${libraries[@]/%/:arm64}" g++-aarch64-linux-gnu qemu-user >/dev/null 2>&1; then
  dpkg --add-architecture arm64
  apt-get -q update
  DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends \
    g++-aarch64-linux-gnu qemu-user "${libraries[@]/%/:arm64}"
fi

unset LDFLAGS # is for the native linker
cmake --preset aarch64
floors=(base io tensor formats)
cmake --build --preset aarch64 --target reshard "${floors[@]/#/test_}"
aarch64-linux-gnu-readelf -h build/aarch64/apps/reshard/reshard | grep -q AArch64 || fail "the program is not one for arm64"
# Without the one that filters system calls, which the emulator does not do.
ctest --preset aarch64 --parallel "$(nproc)" --tests-regex "^($(IFS='|' && echo "${floors[*]}")):" \
  --exclude-regex 'Where the kernel refuses newer calls'

work=$(mktemp --directory --tmpdir reshard-aarch64-XXXXXX)
trap 'rm -rf "$work"' EXIT
reshard=(qemu-aarch64 build/aarch64/apps/reshard/reshard)
model=testdata/golden/optimum/qwen3-tp4-pp3-gqa/original
"${reshard[@]}" shard "$model" "$work/shards" --tp 4 --pp 2
"${reshard[@]}" consolidate "$work/shards" "$work/whole"
"${reshard[@]}" verify "$model" "$work/whole"
"${reshard[@]}" shard "$model" "$work/float16" --tp 2 --dtype float16 --format pytorch
"${reshard[@]}" inspect "$work/float16" >/dev/null
# Both kinds of SIMD give the same values.
for cpu in cortex-a57:neon max:sve; do
  emulated=(qemu-aarch64 -cpu "${cpu%:*}" "${reshard[1]}")
  "${emulated[@]}" doctor | grep "instruction set  *${cpu#*:}" >/dev/null || fail "${cpu%:*}: doctor names another instruction set"
  "${emulated[@]}" shard "$model" "$work/${cpu%:*}" --tp 2 --dtype float16 --format pytorch --quiet
  diff -r "$work/float16" "$work/${cpu%:*}" || fail "${cpu%:*}: other values"
done
echo "Passed on arm64, under qemu"
