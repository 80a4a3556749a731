#!/usr/bin/env bash
# What takes too long for every change. Goes on after a part that fails, and fails at the end. Prints the time of each part.
#
#   install  what README says of installing, with the demo and the tests
#   release  each source compiled by itself, without precompiled headers, warnings are errors; all tests of what is optimised,
#            with all random models
#   asan     all tests, with all random models, under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan     the engine, and a tenth of the random models of end_to_end, under ThreadSanitizer
#   fuzz     all fuzzers for an hour
#   tidy     clang-tidy over all lines; says what it finds
#   trixie   build and tests on Debian 13 with its torch, in a directory of its own, a sixteenth of the random models; needs root
#   mpi      runs under mpirun and srun, with a hundred kills
#   kills    runs that are killed and resumed: three hundred kills, and one at each system call that publishes outputs
#   same     outputs of all golden cases, compared with those of the last release, or of the commit of a day ago, or of
#            SAME_AS; and how long two checkpoints of thousands of files take to plan. What differs on purpose is in
#            CHANGELOG.md
#   dist     what is released, built twice and each artefact run in its own fresh root; needs root
#   aarch64  the floors that read files, and a model, on arm64 by qemu
#
# Parts that take longer than an hour on two cores are divided. release, asan and tsan run a build and shares of the tests,
# such as asan-build, asan-1 … asan-6; fuzz runs fuzz-1 and fuzz-2, each in half of the time; fuzz-2 starts from the inputs
# that fuzz-1 found; same runs same-1 … same-4, and same-4 plans the two large checkpoints, too. A share builds what it
# needs, which takes no time after the build's own part, or after the first share.
#
#   scripts/nightly.sh                     all of it
#   scripts/nightly.sh tsan fuzz           some of it
#   scripts/nightly.sh asan-build asan-1   the first sixth of one part
#   scripts/nightly.sh --list              the names of all parts
#   FUZZ_SECONDS=600 TEST_SHARE=10 scripts/nightly.sh asan fuzz     less of it: a tenth of the random models
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Shares of the tests of each part that is divided.
declare -A shares=([release]=4 [asan]=6 [tsan]=4 [fuzz]=2 [same]=4)

# divided PART: the parts that PART runs.
divided() {
  local count=${shares[$1]:-0}
  if ((count == 0)); then
    echo "$1"
    return
  fi
  [[ $1 == fuzz || $1 == same ]] || echo "$1-build"
  seq --format "$1-%.0f" "$count"
}

all=()
for part in install release asan tsan fuzz tidy trixie mpi kills same dist aarch64; do
  mapfile -t -O "${#all[@]}" all < <(divided "$part")
done
if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${all[@]}"
  exit 0
fi
parts=()
for part in "$@"; do
  mapfile -t -O "${#parts[@]}" parts < <(divided "$part")
done
((${#parts[@]})) || parts=("${all[@]}")
for part in "${parts[@]}"; do
  if [[ " ${all[*]} " != *" $part "* ]]; then
    echo "usage: scripts/nightly.sh [install] [release] [asan] [tsan] [fuzz] [tidy] [trixie] [mpi] [kills] [same] [dist] [aarch64]" >&2
    echo "       scripts/nightly.sh --list" >&2
    exit 2
  fi
done

step() {
  printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"
}

# run_share PRESET PART K [ARGUMENT...]: share K of the tests that CTest has with these arguments.
run_share() {
  local preset=$1 part=$2 share=$3
  shift 3
  step "Share $share of ${shares[$part]} of the tests of $part"
  ctest --preset "$preset" --parallel "$(nproc)" --tests-information "$share,,${shares[$part]}" "$@"
}

run_install() {
  step "Install and demo, as README has them"
  scripts/install-packages.sh
  cmake --fresh --preset release -DRESHARD_BUILD_TESTS=OFF && cmake --build --preset release
  scripts/check-package.sh build/release
  scripts/demo.sh
  step "Tests of what is installed, as README has them"
  scripts/test.sh
}

run_release() {
  step "Each source by itself"
  cmake --preset release -DRESHARD_BUILD_TESTS=ON -DRESHARD_WARNINGS_AS_ERRORS=ON -DCMAKE_UNITY_BUILD=OFF \
    -DRESHARD_PRECOMPILE_HEADERS=OFF -DRESHARD_TEST_FLAGS=
  cmake --build --preset release
  [[ $1 == build ]] || run_share release release "$1"
}

run_asan() {
  step "AddressSanitizer and UndefinedBehaviorSanitizer"
  cmake --preset asan-ubsan
  cmake --build --preset asan-ubsan
  [[ $1 == build ]] || RESHARD_TEST_SHARE="${TEST_SHARE:-1}" run_share asan-ubsan asan "$1"
}

run_tsan() {
  step "ThreadSanitizer"
  cmake --preset tsan
  cmake --build --preset tsan --target test_engine test_end_to_end
  [[ $1 == build ]] || RESHARD_TEST_SHARE="${TEST_SHARE:-10}" TSAN_OPTIONS=halt_on_error=1 \
    run_share tsan tsan "$1" --tests-regex '^(engine|end_to_end):'
}

run_fuzz() {
  step "Fuzzing, share $1 of ${shares[fuzz]}"
  scripts/fuzz.sh "$((${FUZZ_SECONDS:-3600} / shares[fuzz]))"
}

run_tidy() {
  step "All lines with clang-tidy"
  scripts/tidy.sh --all
}

run_trixie() {
  step "Debian 13"
  local root
  root=$(mktemp --directory --tmpdir reshard-trixie-XXXXXX)
  # shellcheck disable=SC2064 # the directory of now
  trap "umount --lazy --recursive '$root/proc' '$root/dev' 2>/dev/null; rm -rf --one-file-system '$root'" EXIT
  command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap
  chmod 755 "$root" # tests become nobody
  debootstrap --variant=minbase trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  mkdir "$root/reshard"
  git ls-files --cached --others --exclude-standard -z | tar --null --create --files-from=- | tar --extract --directory "$root/reshard"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev" # with terminals
  mount --make-rslave "$root/dev"
  RESHARD_TEST_SHARE=${TEST_SHARE:-16} CTEST_PARALLEL_LEVEL=$(nproc) chroot "$root" env --unset=TMPDIR \
    --unset=CMAKE_CXX_COMPILER_LAUNCHER --unset=LDFLAGS bash -c '
    apt-get update && apt-get install -y --no-install-recommends python3-torch python3-numpy # which loads what we write
    cd /reshard && scripts/install-packages.sh &&
      cmake --preset dev -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 -DRESHARD_WARNINGS_AS_ERRORS=OFF &&
      cmake --build --preset dev && ctest --preset dev'
}

# Builds the program as it is released, and make_model.
build_program() {
  scripts/install-packages.sh --ci
  cmake --preset release -DRESHARD_BUILD_TESTS=OFF && cmake --build --preset release
  cmake --build --preset release --target make_model
}

run_mpi() {
  step "Ranks under launchers"
  build_program
  scripts/test-mpi.sh build/release "${KILLS:-100}"
}

run_kills() {
  step "Kills"
  build_program
  scripts/test-resume.sh build/release "$((3 * ${KILLS:-100}))"
  scripts/test-kills.py build/release 1
}

# Programs of two commits. The old one stays built for the next share.
run_same() {
  local old_commit tree source giants
  if (($1 > 1)) && [[ -z "${SAME_AS:-}" && -f build/same-old/commit ]]; then
    old_commit=$(<build/same-old/commit) # chosen by the first share
  else
    old_commit=${SAME_AS:-$(git describe --tags --abbrev=0 2>/dev/null || git rev-list -1 --before='1 day ago' HEAD)}
  fi
  step "The outputs of ${old_commit:-the last release}, share $1 of ${shares[same]}"
  if [[ -z "$old_commit" ]]; then
    echo "nightly.sh: there is no tag and no commit older than a day to compare with" >&2
    return 1
  fi
  tree=build/same-old/$(git rev-parse "$old_commit^{commit}")
  if [[ ! -d "$tree" ]]; then
    rm -rf build/same-old
    git worktree prune
    git worktree add --detach "$tree" "$old_commit"
    echo "$old_commit" >build/same-old/commit
  fi
  "$tree/scripts/install-packages.sh" # which may need what is no longer needed
  for source in "$tree" .; do
    cmake -S "$source" -B "$source/build/same" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
      -DCMAKE_UNITY_BUILD_BATCH_SIZE=6 -DCMAKE_CXX_COMPILER=clang++ -DRESHARD_BUILD_TESTS=OFF
    cmake --build "$source/build/same" --target reshard
  done
  local more=()
  if (($1 == shares[same])); then
    cmake --build build/same --target make_model make_training
    giants=$(mktemp --directory --tmpdir reshard-same-XXXXXX)
    # shellcheck disable=SC2064 # the directory of now
    trap "rm -rf '$giants'" EXIT
    more=(--giants "$giants" --tools build/same/apps/tools)
  fi
  scripts/same-output.sh "$tree/build/same/apps/reshard/reshard" build/same/apps/reshard/reshard --no-texts \
    --part "$1/${shares[same]}" --share "${TEST_SHARE:-1}" "${more[@]}"
}

run_aarch64() {
  step "arm64"
  scripts/test-aarch64.sh
}

run_dist() {
  step "What is released"
  scripts/release.sh
}

failed=()
for part in "${parts[@]}"; do
  began=$SECONDS
  # In a shell of its own, which ends at the first command that fails, even here.
  set +e
  (set -e && "run_${part%-*}" "${part##*-}")
  status=$?
  set -e
  ((status == 0)) || failed+=("$part")
  printf '\n-- %s: %d min %d s, exit code %d\n' "$part" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$status"
done
if ((${#failed[@]})); then
  step "Failed: ${failed[*]}"
  exit 1
fi
step "Passed: ${parts[*]}"
