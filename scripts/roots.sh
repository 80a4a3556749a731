# shellcheck shell=bash
# Root directories of other systems, to build and test in. For scripts that have $work, a directory of theirs, and fail;
# ROOTS, a directory, has those that were made before.
: "${ROOTS:=$work/roots}"
export DEBIAN_MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

# Makes $ROOTS/NAME, unless it is there.
base_root() { # NAME SUITE MIRROR OPTIONS…
  [[ ! -d $ROOTS/$1 ]] || return 0
  command -v debootstrap >/dev/null || return 1
  debootstrap --variant=minbase --include=python3-venv "${@:4}" "$2" "$ROOTS/$1" "$3" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 3 "$work/debootstrap.log" >&2 && rm -rf --one-file-system "${ROOTS:?}/$1" && return 1; }
}

fresh_root() { # NAME: an empty directory, or a copy of $ROOTS/NAME, as $root
  root=$work/root
  rm -rf --one-file-system "$root"
  if [[ $1 == empty ]]; then mkdir "$root"; else cp -a "$ROOTS/$1" "$root"; fi
}

clean=(/usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C.UTF-8)
in_root() { # COMMAND…: without network
  unshare --net chroot "$root" "${clean[@]}" "$@"
}

online() { # COMMAND…: in the root, with network and /proc, for apt and builds
  cp /etc/resolv.conf "$root/etc"
  # shellcheck disable=SC2016 # expanded there
  unshare --mount bash -euc 'mount -t proc proc "$0/proc"; exec chroot "$0" "$@"' "$root" \
    "${clean[@]}" DEBIAN_FRONTEND=noninteractive "$@"
}

quietly() { # COMMAND…: what it prints, only if it fails
  "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "failed: $*"; }
}
