#!/usr/bin/env bash
# Compares what two builds of reshard make of the same checkpoints; same-output.py --help says how.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/same-output.py" "$@"
