#!/usr/bin/env bash
# clang-tidy over all sources, or over the files given; the rows of kernels/cpu are left out: they use vectors as GCC has
# them. Reads build/debug/compile_commands.json, which has every file alone. About twenty minutes on two cores, so that ./check leaves it
# out: run it before a change of many files lands.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset debug >/dev/null
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cc' ':!src/kernels/cpu')
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/debug --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null
