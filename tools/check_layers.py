#!/usr/bin/env python3
"""Fails where a file of src/ includes a layer that its own may not use. The arrows are the table below, which
ARCHITECTURE.md shows as well.

    python3 tools/check_layers.py [ROOT]
"""
import pathlib
import re
import sys

# layer -> layers it may include, besides itself and base
ARROWS = {
    "base": "",
    "parallel": "",
    "numerics": "",
    "formats": "numerics",
    "precision": "formats numerics",
    "checkpoint": "precision formats numerics",
    "text": "checkpoint",
    "kernels": "formats numerics parallel",
    "kv_cache": "formats",
    "models": "kernels precision formats numerics parallel checkpoint",
    "engine": "models kv_cache kernels precision formats parallel text checkpoint",
    "quantize": "models kernels precision formats numerics parallel text checkpoint",
    "evaluate": "engine quantize models kernels kv_cache precision formats text checkpoint",
    "capacity": "engine precision formats checkpoint",
    "server": "engine capacity text",
    "loadgen": "",
    "cli": "*",
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src"
    problems, files = [], 0
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".h", ".cc", ".inc"}):
        files += 1
        layer = path.relative_to(root).parts[0]
        if layer not in ARROWS:
            problems.append(f"{path}: no such layer: {layer}")
            continue
        allowed = set(ARROWS[layer].split()) | {layer, "base"}
        for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = include.split("/")[0]
            if "*" not in allowed and target not in allowed:
                problems.append(f"{path}: {layer} may not include {include}")
    for problem in problems:
        print(problem)
    print(f"{files} files checked, {len(problems)} forbidden arrows")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
