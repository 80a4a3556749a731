#!/usr/bin/env bash
# Builds, from Debian's own source packages, static libraries of those that Debian ships only as shared ones, into
# build/dist/packages, for the preset `dist`. Skips this if they exist.
#
#   scripts/build-static-packages.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($#)); then
  echo "usage: scripts/build-static-packages.sh" >&2
  exit 2
fi
prefix=$PWD/build/dist/packages
[[ ! -f $prefix/built ]] || exit 0

work=$(mktemp --directory --tmpdir reshard-packages-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$prefix"
# Lists of our own: this system's may name no sources.
# shellcheck disable=SC1091 # the system's
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
printf 'deb-src %s %s %s main\n' "$signed" "$mirror" "$codename" "$signed" "$mirror" "$codename-updates" >"$work/sources.list"
options=(-q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
  -o APT::Sandbox::User=root)

quietly() {
  if ! "$@" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    echo "build-static-packages.sh: failed: $*" >&2
    exit 1
  fi
}

# Takes the version that is installed, whose headers and licences they share.
build() { # PACKAGE SOURCE OPTIONS…
  local version
  version=$(dpkg-query --show --showformat='${source:Version}\n' "$1" | sort -u)
  echo "Building $2 $version"
  (cd "$work" && quietly apt-get "${options[@]}" source "$2=$version")
  local sources=("$work/$2"-*/)
  quietly cmake -S "${sources[0]}" -B "$work/build-$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$work=. -ffunction-sections -fdata-sections" "${@:3}"
  quietly cmake --build "$work/build-$2"
  quietly cmake --install "$work/build-$2"
}

quietly apt-get "${options[@]}" update
build libfmt-dev fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
build libhwy-dev highway -DBUILD_TESTING=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_EXAMPLES=OFF
touch "$prefix/built"
