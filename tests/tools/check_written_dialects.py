#!/usr/bin/env python3
"""Check a folder that `octavo quantize` wrote, with none of Octavo's code.

    pip install numpy
    python check_written_dialects.py SOURCE OUT [--max-error 0.05]

Reads quantization_config and the tensors as the loaders of other engines do, and reports every finding:
  - each eight-bit X.weight has exactly one scale of the right name, shape and type, finite and above zero; no scale
    stands alone; no NaN code
  - quantization_config agrees with the tensors: what is ignored is wide, what is not is quantized
  - dequantized weights are near the source's; every other tensor is the source's, to the byte
  - config.json keeps every key of the source's; index.json names every tensor, and the sizes add up
  - one scale per tensor: q, k, v and gate, up share it
Exit code 1 when there is a finding.
"""
import argparse, json, math, pathlib, re, struct, sys

import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "I8": np.int8, "F8_E8M0": np.uint8}
E4M3 = np.array([(-1) ** (c >> 7) * ((8 + c % 8) * 2.0 ** ((c >> 3) % 16 - 10) if (c >> 3) % 16 else c % 8 * 2.0 ** -9)
                 for c in range(256)], np.float32)
E4M3[0x7F] = E4M3[0xFF] = np.nan


def read_folder(folder):
    """{name: (type, array)} of all shards; BF16 stays as its bits."""
    tensors = {}
    index = folder / "model.safetensors.index.json"
    files = sorted(folder.glob("model*.safetensors"))
    total = 0
    for file in files:
        with open(file, "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(size))
        header.pop("__metadata__", None)
        data = np.memmap(file, np.uint8, "r", 8 + size)
        for name, t in header.items():
            begin, end = t["data_offsets"]
            total += end - begin
            tensors[name] = (t["dtype"], data[begin:end].view(TYPES[t["dtype"]]).reshape(t["shape"]), file.name)
    if index.exists():
        written = json.loads(index.read_text())
        assert written["weight_map"] == {n: t[2] for n, t in tensors.items()}, "weight_map differs from the shards"
        assert written["metadata"]["total_size"] == total, "total_size is wrong"
    else:
        assert [f.name for f in files] == ["model.safetensors"], f"no index for {files}"
    return tensors


def values(tensor):
    kind, array = tensor[:2]
    if kind == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return E4M3[array] if kind == "F8_E4M3" else array.astype(np.float32)


def expand(scale, shape, block):
    return np.repeat(np.repeat(scale, block[0], 0), block[1], 1)[:shape[0], :shape[1]]


class Checker:
    def __init__(self, source, out, max_error):
        self.findings, self.max_error = [], max_error
        self.source, self.out = read_folder(source), read_folder(out)
        source_config, config = (json.loads((f / "config.json").read_text()) for f in (source, out))
        self.quantization = config.pop("quantization_config")
        if config != source_config:
            self.find("config.json", "keys changed")
        self.used, self.scales, self.errors = set(), {}, []

    def find(self, where, what):
        self.findings.append(f"{where}: {what}")

    def rule(self, module):
        """(strategy, block, type) of a module by the config, or None where it stays wide."""
        q = self.quantization
        if q["quant_method"] == "fp8":
            if module in q["modules_to_not_convert"]:
                return None
            block = q.get("weight_block_size")
            return ("block" if block else "tensor", block, "F8_E4M3", "weight_scale_inv" if block else "weight_scale")
        if module in q["ignore"]:
            return None
        groups = sorted(q["config_groups"].values(), key=lambda g: "Linear" in g["targets"])  # names before the class
        for group in groups:
            if module in group["targets"] or "Linear" in group["targets"]:
                w = group["weights"]
                kind = "I8" if w["type"] == "int" else "F8_E4M3"
                assert group["format"] == ("int-quantized" if kind == "I8" else "float-quantized")
                return (w["strategy"], w["block_structure"], kind, "weight_scale")
        return None

    def weight(self, name):
        module = name.removesuffix(".weight")
        rule = self.rule(module)
        kind, codes = self.out[name][:2]
        if rule is None:
            return self.same(name)
        strategy, block, expected, suffix = rule
        if kind != expected:
            return self.find(name, f"is {kind}, the config says {expected}")
        scale_name = f"{module}.{suffix}"
        if scale_name not in self.out:
            return self.find(name, f"has no {suffix}")
        self.used.add(scale_name)
        scale_kind, scale = self.out[scale_name][:2]
        n, k = codes.shape
        shapes = {"channel": [(n, 1)], "tensor": [(), (1,)], "block": block and [(math.ceil(n / block[0]), math.ceil(k / block[1]))]}
        if scale_kind != "F32" or scale.shape not in shapes[strategy]:
            return self.find(scale_name, f"is {scale_kind} {scale.shape}, expected F32 {shapes[strategy]}")
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            self.find(scale_name, "is not finite and positive")
        if strategy == "tensor":
            fused = re.sub(r"(q|k|v)_proj$", "qkv", re.sub(r"(gate|up)_proj$", "gate_up", module))
            if self.scales.setdefault(fused, scale.item()) != scale.item():
                self.find(scale_name, "differs from its fused partner's")
        dequantized = values(self.out[name]) * (expand(scale, (n, k), block) if strategy == "block" else scale.reshape(-1, 1))
        if np.isnan(dequantized).any():
            self.find(name, "holds NaN")
        original = values(self.source[name]).astype(np.float64)
        error = math.sqrt(((dequantized - original) ** 2).sum() / max((original ** 2).sum(), 1e-300))
        self.errors.append(error)
        if error > self.max_error:
            self.find(name, f"relative RMS error {error:.3f}")

    def same(self, name):
        if name not in self.source or self.out[name][0] != self.source[name][0] or not np.array_equal(self.out[name][1], self.source[name][1]):
            self.find(name, "is not the source's tensor")

    def run(self):
        linear = re.compile(r"(.*\.(q|k|v|o|gate|up|down)_proj|lm_head)\.weight$")
        for name in self.out:
            if linear.match(name):
                self.weight(name)
            elif not name.endswith(("weight_scale", "weight_scale_inv")):
                self.same(name)
        for name in self.out:
            if name.endswith(("weight_scale", "weight_scale_inv")) and name not in self.used:
                self.find(name, "belongs to no quantized weight")
        for name in self.source:
            if name not in self.out:
                self.find(name, "is missing")
        for name in self.out:
            if name not in self.source and name not in self.used:
                self.find(name, "is not in the source")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--max-error", type=float, default=0.05)
    args = parser.parse_args()
    checker = Checker(args.source, args.out, args.max_error)
    checker.run()
    for finding in checker.findings:
        print(finding)
    q = checker.quantization
    print(f"{args.out}: {q['quant_method']}, {len(checker.errors)} quantized weights, mean relative RMS error "
          f"{np.mean(checker.errors):.4f}, worst {np.max(checker.errors):.4f}, {len(checker.findings)} findings")
    sys.exit(1 if checker.findings else 0)


if __name__ == "__main__":
    main()
