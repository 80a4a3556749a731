#!/usr/bin/env bash
# What takes too long for every change: all random models under the sanitizers, ThreadSanitizer over the engine, fuzzers
# for an hour, and the build and tests on Debian 13. Needs root for the last, which it runs in a directory of its own.
#
#   scripts/nightly.sh                     all of it
#   scripts/nightly.sh tsan fuzz           some of: asan tsan fuzz trixie
#   FUZZ_SECONDS=600 scripts/nightly.sh fuzz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts=("$@")
((${#parts[@]})) || parts=(asan tsan fuzz trixie)
for part in "${parts[@]}"; do
  if [[ ! "$part" =~ ^(asan|tsan|fuzz|trixie)$ ]]; then
    echo "usage: scripts/nightly.sh [asan] [tsan] [fuzz] [trixie]" >&2
    exit 2
  fi
done

step() {
  printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"
}

run_asan() {
  step "All random models under AddressSanitizer and UndefinedBehaviorSanitizer"
  cmake --preset asan-ubsan
  cmake --build --preset asan-ubsan
  ctest --preset asan-ubsan --parallel "$(nproc)"
}

run_tsan() {
  step "The engine under ThreadSanitizer"
  cmake --preset tsan
  cmake --build --preset tsan --target test_engine test_end_to_end
  local tests=build/tsan/tests
  TSAN_OPTIONS=halt_on_error=1 "$tests/test_engine"
  RESHARD_TEST_SHARE=10 TSAN_OPTIONS=halt_on_error=1 "$tests/test_end_to_end"
}

run_fuzz() {
  step "Fuzzing"
  scripts/fuzz.sh "${FUZZ_SECONDS:-3600}"
}

run_trixie() {
  step "Debian 13"
  local root
  root=$(mktemp --directory --tmpdir reshard-trixie-XXXXXX)
  # shellcheck disable=SC2064 # the directory of now
  trap "rm -rf --one-file-system '$root'" EXIT
  command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap
  debootstrap --variant=minbase trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  mkdir "$root/reshard"
  git ls-files --cached --others --exclude-standard -z | tar --null --create --files-from=- | tar --extract --directory "$root/reshard"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  chroot "$root" bash -c 'cd /reshard && scripts/test.sh'
}

for part in "${parts[@]}"; do "run_$part"; done
step "Passed: ${parts[*]}"
