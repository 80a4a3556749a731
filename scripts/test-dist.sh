#!/usr/bin/env bash
# Tests what scripts/release.sh makes in dist/, each file in a root directory of its own, and lists where each passed.
#
#   scripts/test-dist.sh
#
# Needs root (chroot, debootstrap), the network (packages of the distributions) and 6 GB under ${TMPDIR:-/tmp}.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "test-dist.sh: $*" >&2
  exit 1
}

step() {
  printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"
}

if (($#)); then
  echo "usage: scripts/test-dist.sh" >&2
  exit 2
fi
[[ $EUID -eq 0 ]] || fail "this needs root, for chroot"
[[ -f dist/SHA256SUMS ]] || fail "there is no dist/SHA256SUMS; run scripts/release.sh"
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
model=testdata/golden/optimum/qwen3-tp4-pp3-gqa/original
work=$(mktemp --directory --tmpdir reshard-dist-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
# shellcheck source=scripts/roots.sh
source scripts/roots.sh

# Runs `$@ ARGUMENTS…` in the root directory $root, which gets a model: there and back.
exercise() {
  rm -rf "$root/model" "$root/tp2" "$root/whole"
  cp -r "$model" "$root/model"
  [[ "$("$@" --version)" == "reshard $version" ]] || fail "$*: --version is not $version"
  "$@" shard /model /tp2 --tp 2 --quiet
  "$@" verify /model /tp2 >"$work/log"
  "$@" consolidate /tp2 /whole --quiet
  cmp "$root/model/model.safetensors" "$root/whole/model.safetensors" || fail "$*: another model came back"
}

says() { # TEXT COMMAND…: it fails with this text
  ! "${@:2}" >"$work/log" 2>&1 || fail "did not fail: ${*:2}"
  grep -qF -- "$1" "$work/log" || { cat "$work/log" >&2 && fail "${*:2}: does not say: $1"; }
}

declare -A tested=()
# Notes that the artefact of this name passed there.
passed() { # FILE WHERE
  tested[$1]+="${tested[$1]:+; }$2"
  echo "$1: $2"
}

test_static_tarball() { # WHERE
  local name=reshard-$version-linux-x86_64.tar.gz program=/reshard-$version/bin/reshard file
  fresh_root "$1"
  tar --extract --file "dist/$name" --directory "$root"
  exercise unshare --net chroot "$root" "$program"
  says "this build of reshard is static and has no MPI" chroot "$root" "$program" inspect /model --mpi yes
  chroot "$root" "$program" doctor | grep -F "this build of reshard is static and has no MPI" >/dev/null
  for file in share/man/man1/reshard.1 share/doc/reshard/licenses/VERSIONS share/bash-completion/completions/reshard \
    share/zsh/site-functions/_reshard share/fish/vendor_completions.d/reshard.fish; do
    [[ -s $root/reshard-$version/$file ]] || fail "$name: $file is not in it"
  done
  OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 \
    says "started 2 processes, but this build of reshard is static" chroot "$root" "$program" inspect /model
  passed "$name" "$2"
}

test_mpi_tarball() { # WHERE
  local name=reshard-$version-linux-x86_64-mpi.tar.gz
  fresh_root "$1"
  tar --extract --file "dist/$name" --directory "$root"
  exercise in_root "/reshard-$version-mpi/bin/reshard"
  passed "$name" "$2"
}

# Two ranks write what one process writes. On this machine, which has both MPIs.
test_ranks() {
  local name=reshard-$version-linux-x86_64-mpi.tar.gz family program
  fresh_root empty
  tar --extract --file "dist/$name" --directory "$root"
  program=$root/reshard-$version-mpi/bin/reshard
  "$program" shard "$model" "$root/one" --tp 4 --quiet
  for family in openmpi mpich; do
    local launcher=("mpirun.$family" -n 2)
    [[ $family == mpich ]] || launcher+=(--allow-run-as-root --oversubscribe)
    quietly "${launcher[@]}" "$program" shard "$model" "$root/$family" --tp 4 --mpi yes --quiet
    diff -r "$root/one" "$root/$family" || fail "${launcher[*]}: two ranks write something else than one"
    passed "$name" "${launcher[0]} -n 2"
  done
}

test_wheel() { # WHERE
  local name
  name=$(basename "dist/reshard-$version"-*.whl)
  fresh_root "$1"
  cp "dist/$name" "$root"
  in_root python3 -m venv /venv
  local list=(find "$root/venv" -not -path '*__pycache__*' -not -name '*.pyc')
  "${list[@]}" | sort >"$work/before"
  in_root /venv/bin/pip --disable-pip-version-check install --quiet --no-index "/$name"
  exercise in_root /venv/bin/reshard
  [[ "$(in_root /venv/bin/python -m reshard --version)" == "reshard $version" ]] || fail "$name: python -m reshard fails"
  in_root /venv/bin/pip --disable-pip-version-check uninstall --quiet --yes reshard
  "${list[@]}" | sort | diff "$work/before" - || fail "$name: pip uninstall leaves something"
  [[ -z "$(find "$root/venv" -iname '*reshard*')" ]] || fail "$name: pip uninstall leaves something"
  passed "$name" "$2, $(in_root /venv/bin/pip --version | cut -d ' ' -f 1,2) of $(in_root python3 --version)"
}

test_pipx() { # on this machine
  local wheel
  wheel=$(basename "dist/reshard-$version"-*.whl)
  export PIPX_HOME=$work/pipx PIPX_BIN_DIR=$work/pipx/bin
  quietly unshare --net pipx install --pip-args=--no-index "dist/$wheel"
  [[ "$("$PIPX_BIN_DIR/reshard" --version)" == "reshard $version" ]] || fail "$wheel: pipx installs something else"
  quietly pipx uninstall reshard
  [[ ! -e $PIPX_BIN_DIR/reshard ]] || fail "$wheel: pipx uninstall leaves the command"
  passed "$wheel" "pipx"
}

test_debian_program() { # ROOT WHERE
  local name=reshard_$version-1_amd64.deb
  fresh_root "$1"
  local list=(find "$root" -path "$root/var" -prune -o -print)
  "${list[@]}" | sort >"$work/before"
  cp "dist/$name" "$root/var"
  quietly in_root apt-get install --yes "/var/$name"
  exercise in_root reshard
  in_root zcat /usr/share/man/man1/reshard.1.gz | grep '^\.TH RESHARD 1' >/dev/null || fail "$name: no manual page"
  in_root reshard doctor | grep -F 'libmpi.so.40: cannot open' >/dev/null || fail "$name: the plug-in for Open MPI is not found"
  in_root bash -n /usr/share/bash-completion/completions/reshard
  rm -r "${root:?}"/{model,tp2,whole,"var/$name"}
  quietly in_root apt-get purge --yes reshard
  "${list[@]}" | sort | diff "$work/before" - || fail "$name: apt-get purge leaves something"
  [[ -z "$(find "$root/var" -iname '*reshard*')" ]] || fail "$name: apt-get purge leaves something in /var"
  passed "$name" "$2"
}

test_debian_library() { # ROOT WHERE
  local name=libreshard-dev_$version-1~${1/debian/deb}_amd64.deb
  fresh_root "$1"
  cp -r tests/package testdata/golden/optimum/llama-tp2-pp2/original "dist/$name" "$root"
  quietly online apt-get update
  quietly online apt-get install --yes --no-install-recommends "/$name" g++ cmake make
  quietly in_root /package/check.sh /original /build
  passed "$name" "$2"
}

test_image() {
  local name=reshard-$version-oci.tar entry
  skopeo inspect --config "oci-archive:dist/$name" >"$work/config.json"
  entry=$(sed -n '/"Entrypoint"/,/]/p' "$work/config.json" | tr -d ' \n')
  [[ $entry == '"Entrypoint":["reshard"],'* || $entry == '"Entrypoint":["reshard"]'* ]] || fail "$name: entry point: $entry"
  # skopeo checks digests and sizes of what it copies, umoci unpacks it.
  rm -rf "$work/oci" "$work/bundle"
  skopeo copy --quiet "oci-archive:dist/$name" "oci:$work/oci:image"
  quietly umoci unpack --image "$work/oci:image" "$work/bundle"
  root=$work/bundle/rootfs
  exercise unshare --net chroot "$root" /usr/bin/reshard
  passed "$name" "skopeo, umoci and chroot"
}

# The oldest CPU of the architecture, and one for which a program was not compiled.
test_cpus() {
  local name=reshard-$version-linux-x86_64.tar.gz emulator=(qemu-x86_64 -cpu Opteron_G1) program
  fresh_root empty
  tar --extract --file "dist/$name" --directory "$root"
  program=$root/reshard-$version/bin/reshard
  "${emulator[@]}" "$program" shard "$model" "$root/emulated" --tp 2 --dtype float16 --quiet
  "$program" shard "$model" "$root/native" --tp 2 --dtype float16 --quiet
  diff -r "$root/emulated" "$root/native" || fail "$name: another CPU writes something else"
  passed "$name" "an emulated Opteron of 2005"
  g++ -std=c++20 -Iapps/reshard -c apps/reshard/cpu_check.cpp -o "$work/check.o"
  g++ -std=c++20 -Iapps/reshard -march=x86-64-v3 "$work/check.o" apps/reshard/cpu_features.cpp -x c++ - -o "$work/newer" \
    <<<'int main() {}'
  says "this CPU lacks instructions that this program was compiled for" "${emulator[@]}" "$work/newer"
}

# As `podman build` and `podman load` do, with Debian 12's root for the image on which the build begins.
test_containers() {
  local name=reshard-$version-oci.tar container
  local tool=(buildah --root "$work/containers" --runroot "$work/containers-run" --storage-driver vfs)
  export BUILDAH_ISOLATION=chroot
  container=$("${tool[@]}" from scratch)
  tar --directory "$ROOTS/debian12" --create --file "$work/base.tar" .
  quietly "${tool[@]}" add "$container" "$work/base.tar" /
  quietly "${tool[@]}" config --env "PATH=/usr/sbin:/usr/bin:/sbin:/bin" "$container"
  quietly "${tool[@]}" commit "$container" docker.io/library/debian:12
  rm "$work/base.tar"
  git clone --quiet . "$work/context"
  quietly "${tool[@]}" build --pull-never --network host --tag localhost/from-source "$work/context"
  quietly "${tool[@]}" pull --quiet "oci-archive:dist/$name"
  local image
  for image in localhost/from-source "localhost/reshard:$version"; do
    container=$("${tool[@]}" from --pull-never "$image")
    root=$("${tool[@]}" mount "$container")
    exercise "${tool[@]}" run --network none "$container" -- reshard
  done
  passed "$name" "buildah run"
  passed Containerfile "buildah build, buildah run"
}

# The keys of Ubuntu's archive are in no package of Debian 12.
ubuntu_keyring() {
  local url=https://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2018.09.18.1~18.04.2_all.deb
  local digest=5d8609563fb3074026b254d7d5248f90d393c7dbafcac48916f333bf3c90fed9
  curl --silent --show-error --fail --output "$work/keyring.deb" "$url" &&
    sha256sum --quiet --check <<<"$digest  $work/keyring.deb" && dpkg-deb -x "$work/keyring.deb" "$work/keyring"
}

missing=() # distributions

test_distribution() { # NAME SUITE MIRROR WHERE OPTIONS…
  if ! base_root "$1" "$2" "$3" "${@:5}"; then
    echo "test-dist.sh: NOT TESTED in $4: debootstrap fails" >&2
    missing+=("$4")
    return
  fi
  test_static_tarball "$1" "$4"
  test_wheel "$1" "$4"
  if [[ $1 == debian* ]]; then # Ubuntu's glibc is older
    test_mpi_tarball "$1" "$4"
    test_debian_program "$1" "$4"
    test_debian_library "$1" "$4"
  fi
  [[ $1 != debian12 ]] || test_containers
  rm -rf --one-file-system "${ROOTS:?}/$1"
}

step "Debian packages by lintian"
# No address of the developers is known, and no archive of Debian has a bug that asks for the packages.
lintian --allow-root --fail-on error dist/*.deb \
  --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs

step "Tests in fresh roots"
test_static_tarball empty "an empty root"
test_cpus
test_image
test_ranks
test_pipx
test_distribution debian12 bookworm "$DEBIAN_MIRROR" "Debian 12"
test_distribution debian13 trixie "$DEBIAN_MIRROR" "Debian 13"
ubuntu_keyring || echo "test-dist.sh: there are no keys of Ubuntu's archive" >&2
test_distribution ubuntu16 xenial http://archive.ubuntu.com/ubuntu "Ubuntu 16.04" --components=main,universe \
  --keyring="$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"

step "dist/"
for file in dist/reshard* dist/libreshard*; do
  printf '%s  %s\n    %s\n' "$(du --human-readable --apparent-size "$file" | cut -f 1)" "${file#dist/}" "${tested[${file#dist/}]:-}"
  [[ -n "${tested[${file#dist/}]:-}" ]] || missing+=("${file#dist/}")
done
(cd dist && sha256sum --check --quiet SHA256SUMS)
((${#missing[@]} == 0)) || fail "not tested: ${missing[*]}"
