#!/usr/bin/env python3
"""Fails where a file of src/ includes a layer that its own may not use, and where two files define types of one name
(outside unnamed and inner namespaces: the linker would silently take one for the other). The arrows are the table
below, which ARCHITECTURE.md shows as well.

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
# What opens or closes a namespace, or defines a type, at the beginning of a line.
SCOPE = re.compile(r"^namespace(?: ([\w:]+))? \{|^(\}  // namespace)|^(?:struct|class|enum class) (?:alignas\(\d+\) )?(\w+)\b(?!::)[^;\n]*\{", re.M)


def types_of_the_namespace(text):
    scopes = []
    for opened in SCOPE.finditer(text):
        if opened[3]:
            if scopes == ["octavo"]:
                yield opened[3]
        elif opened[2]:
            scopes.pop()
        else:
            scopes.append(opened[1])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src"
    problems, files, types = [], 0, {}
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".h", ".cc", ".inc"}):
        files += 1
        layer = path.relative_to(root).parts[0]
        if layer not in ARROWS:
            problems.append(f"{path}: no such layer: {layer}")
            continue
        allowed = set(ARROWS[layer].split()) | {layer, "base"}
        text = path.read_text(encoding="utf-8")
        for name in types_of_the_namespace(text):
            if name in types:
                problems.append(f"{path}: {name} is a type of {types[name]} too")
            types[name] = path
        for include in INCLUDE.findall(text):
            target = include.split("/")[0]
            if "*" not in allowed and target not in allowed:
                problems.append(f"{path}: {layer} may not include {include}")
    for problem in problems:
        print(problem)
    print(f"{files} files checked, {len(types)} types, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
