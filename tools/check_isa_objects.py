#!/usr/bin/env python3
"""Fails when an object built for one instruction set defines a weak symbol.

check_isa_objects.py BUILD_DIR [ISA...]

The linker keeps one copy of a weak symbol (an inline function, a template of the standard library). If it keeps the
copy that was built for AVX-512, a CPU without it dies somewhere else entirely. So the files under
src/kernels/cpu/<isa>/ may export their tables and nothing that another file could define too.
"""

import pathlib
import subprocess
import sys

WEAK = set("WVu")
# Pointers to the exception handler that sanitizer builds emit: data, the same in every object.
HARMLESS = "DW.ref."


def weak_symbols(obj):
    """Symbols that `obj` defines and another object may replace or be replaced by."""
    out = subprocess.run(["nm", "--defined-only", "--demangle", str(obj)], check=True, capture_output=True, text=True)
    for line in out.stdout.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and parts[1] in WEAK and not parts[2].startswith(HARMLESS):
            yield parts[2]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    folders = sys.argv[2:] or ["avx2", "avx512", "avx512_bf16"]
    objects = [o for f in folders for o in sorted(build.glob(f"**/kernels/cpu/{f}/*.o"))]
    if not objects:
        sys.exit(f"no objects of kernels/cpu/{{{','.join(folders)}}} below {build}: build first")
    found = [(o, s) for o in objects for s in weak_symbols(o)]
    for obj, symbol in found:
        print(f"{obj.relative_to(build)}: weak symbol {symbol}")
    if found:
        sys.exit(1)
    print(f"{len(objects)} objects, no weak symbols")


if __name__ == "__main__":
    main()
