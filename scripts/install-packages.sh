#!/usr/bin/env bash
# Installs what the build and the tests need, on Debian 12 and 13 and their relatives. Skips what is installed.
#
#   scripts/install-packages.sh            compiler, build tools, libraries
#   scripts/install-packages.sh --tests    the same and what scripts/test.sh ci builds with
#   scripts/install-packages.sh --ci       the same and what .ci/run checks with
#   scripts/install-packages.sh --release  compiler, build tools, libraries and what scripts/release.sh needs
set -euo pipefail

packages=(
  g++ cmake ninja-build pkgconf
  libcli11-dev libdeflate-dev libfmt-dev libhwy-dev libre2-dev libssl-dev libxxhash-dev libzstd-dev nlohmann-json3-dev zlib1g-dev
  catch2 libxtensor-dev # tests only
)
testers=(clang lld) # compile and link the tests
checkers=(
  clang-format-14 clang-tidy-14 shellcheck
  libclang-rt-dev             # sanitizers, fuzz targets
  python3-torch python3-numpy # tests/torch
  python3-jsonschema          # tests/schema
  strace                      # scripts/test-kills.py
  openmpi-bin libopenmpi-dev mpich libmpich-dev               # scripts/test-mpi.sh: both plug-ins of lib/mpi
  slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins # scripts/test-mpi.sh: ranks started by srun
)
releasers=(
  dpkg-dev debootstrap curl                     # sources of packages, roots
  skopeo umoci buildah                          # images
  pipx                                          # the wheel
  qemu-user                                     # another CPU
  lintian                                       # Debian packages
  openmpi-bin libopenmpi-dev mpich libmpich-dev # plug-ins
)

case "${1:-}" in
  "") ;;
  --tests | --ci) packages+=("${testers[@]}") ;;
  --release) packages+=("${releasers[@]}") ;;
  *)
    echo "usage: scripts/install-packages.sh [--tests|--ci|--release]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "No apt-get here. If the build fails, install these (names as in Debian): ${packages[*]}" >&2
  exit 0
fi

architecture=$(dpkg --print-architecture) # packages of another may be installed, too, to cross-compile
is_installed() {
  dpkg-query --show --showformat='${Architecture} ${db:Status-Status}\n' "$1" 2>/dev/null |
    grep -qE "^($architecture|all) installed$"
}

is_available() {
  [[ -n "$(apt-cache madison "$1" 2>/dev/null)" ]]
}

# Not every release has all checkers; a fresh machine has no lists that would say so.
is_out_of_reach() {
  is_available g++ && ! is_available "$1"
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
missing_checkers=()
if [[ "${1:-}" == --ci ]]; then
  for package in "${checkers[@]}"; do
    is_installed "$package" || is_out_of_reach "$package" || missing_checkers+=("$package")
  done
fi
((${#missing[@]} + ${#missing_checkers[@]})) || exit 0

as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "To install ${missing[*]} ${missing_checkers[*]}, run this as root, or install sudo." >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Quiet unless it fails.
apt() {
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    return 1
  fi
}

apt update || echo "apt-get update failed; going on with the package lists that are there." >&2
for package in "${missing_checkers[@]}"; do
  is_out_of_reach "$package" || missing+=("$package")
done
((${#missing[@]})) || exit 0
echo "Installing ${missing[*]}"
apt install --no-install-recommends "${missing[@]}"
