#!/usr/bin/env python3
"""Check a folder that `octavo quantize` wrote, with none of Octavo's code.

    pip install numpy
    python check_written_dialects.py SOURCE OUT [--max-error 0.05]

With --library (pip install torch compressed-tensors) packed weights of compressed-tensors are dequantized by that
library, too. Reads quantization_config and the tensors as the loaders of other engines do, and reports every finding:
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

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "I8": np.int8, "F8_E8M0": np.uint8,
         "U8": np.uint8, "I32": np.uint32, "I64": np.int64}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
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


def in_words(words, bits, axis):
    """Unsigned codes in 32-bit words along an axis, lowest bits first."""
    codes = np.stack([words >> s & (2 ** bits - 1) for s in range(0, 32, bits)], -1)
    codes = np.moveaxis(codes, -1, axis + 1)
    return codes.reshape(*words.shape[:axis], -1, *words.shape[axis + 1:]).astype(np.int32)


def in_nibbles(packed):
    return E2M1[np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)]


class Checker:
    def __init__(self, source, out, max_error, library=False):
        self.findings, self.max_error, self.folder, self.library = [], max_error, out, library
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
        if q["quant_method"] == "gptq" or module in q["ignore"]:
            return None
        groups = sorted(q["config_groups"].values(), key=lambda g: "Linear" in g["targets"])  # names before the class
        for group in groups:
            if module in group["targets"] or "Linear" in group["targets"]:
                w = group["weights"]
                if w["strategy"] in ("group", "tensor_group"):
                    return (w["strategy"], w["group_size"], "packed", "weight_scale")
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

    def packed(self, module):
        """A weight that its dialect packs: dequantized by the dialect's definition; None where it is not packed."""
        t = {n[len(module) + 1:]: v for n, v in self.out.items() if n.startswith(module + ".")}
        q, method = self.quantization, self.quantization["quant_method"]
        algorithm = q.get("quant_algo", "")
        n, k = self.source[module + ".weight"][1].shape
        take = lambda *names: [self.used.add(f"{module}.{x}") or t[x][1] for x in names]
        if method == "gptq" and "qweight" in t:
            words, zeros, scales, group = take("qweight", "qzeros", "scales", "g_idx")
            codes = in_words(words, 4, 0)[:k]
            zero = in_words(zeros, 4, 1)[:, :n] + (q["checkpoint_format"] == "gptq")
            if q["sym"] and (zero != 8).any():
                self.find(module + ".qzeros", "is not the middle although the config says sym")
            return ((codes - zero[group]) * scales.astype(np.float32)[group]).T
        if method == "modelopt" and algorithm == "W4A16_NVFP4":
            packed, scale, outer = take("weight", "weight_scale", "weight_scale_2")
            return in_nibbles(packed) * np.repeat(E4M3[scale] * outer, 16, 1)[:, :k]
        if method == "modelopt" and algorithm == "FP8":
            codes, scale, activation = take("weight", "weight_scale", "input_scale")
            if scale.shape or activation.shape or not activation > 0:
                self.find(module, f"one scale each is expected: {scale.shape}, {activation.shape}")
            return E4M3[codes] * scale
        if method == "modelopt" and algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            codes, scale = take("weight", "weight_scale")
            return E4M3[codes] * scale[:, None]
        if method == "modelopt" or q.get("format") == "mxfp8-quantized":
            codes, scale = take("weight", "weight_scale")
            return E4M3[codes] * np.repeat(np.exp2(scale.astype(np.float32) - 127), 32, 1)[:, :k]
        if "weight_packed" not in t:
            return None
        if t["weight_packed"][0] == "I32":
            packed, scale, shape = take("weight_packed", "weight_scale", "weight_shape")
            if shape.tolist() != [n, k]:
                self.find(module + ".weight_shape", f"is {shape.tolist()}")
            codes, width = in_words(packed, 4, 1)[:, :k] - 8, self.rule(module)[1]
            zero = np.zeros(scale.shape, np.int32)
            if "weight_zero_point" in t:
                zero = in_words(take("weight_zero_point")[0], 4, 0)[:n] - 8
            group = np.arange(k) // width
            return (codes - zero[:, group]) * scale.astype(np.float32)[:, group]
        packed, scale = take("weight_packed", "weight_scale")
        if "weight_global_scale" in t:
            return in_nibbles(packed) * np.repeat(E4M3[scale] / take("weight_global_scale")[0], 16, 1)[:, :k]
        return in_nibbles(packed) * np.repeat(np.exp2(scale.astype(np.float32) - 127), 32, 1)[:, :k]

    def by_library(self, module, ours):
        """compressed-tensors' own decompression of a packed weight."""
        import torch
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationScheme
        from safetensors import safe_open
        group = next(g for g in self.quantization["config_groups"].values() if module in g["targets"] or "Linear" in g["targets"])
        state = {}
        for file in {t[2] for n, t in self.out.items() if n.startswith(module + ".")}:
            with safe_open(self.folder / file, "pt") as f:
                state |= {n[len(module) + 1:]: f.get_tensor(n) for n in f.keys() if n.startswith(module + ".")}
        compressor = BaseCompressor.get_value_from_registry(group["format"])
        theirs = compressor.decompress(state, QuantizationScheme(**group))["weight"]
        # The library multiplies in the type of its scales, and rounds to it.
        if not torch.equal(theirs, torch.tensor(ours).to(theirs.dtype)):
            theirs = theirs.float().numpy()
            self.find(module, f"the library's values differ by up to {np.abs(theirs - ours).max()}")

    def check_packed(self, module):
        dequantized = self.packed(module)
        if dequantized is None:
            return False
        if not np.isfinite(dequantized).all():
            self.find(module, "holds NaN or infinity")
        original = values(self.source[module + ".weight"]).astype(np.float64)
        error = math.sqrt(((dequantized - original) ** 2).sum() / max((original ** 2).sum(), 1e-300))
        self.errors.append(error)
        if error > self.max_error:
            self.find(module, f"relative RMS error {error:.3f}")
        if self.library and self.quantization["quant_method"] == "compressed-tensors":
            self.by_library(module, dequantized.astype(np.float32))
        return True

    def same(self, name):
        if name not in self.source or self.out[name][0] != self.source[name][0] or not np.array_equal(self.out[name][1], self.source[name][1]):
            self.find(name, "is not the source's tensor")

    def run(self):
        linear = re.compile(r"(.*\.(q|k|v|o|gate|up|down)_proj|lm_head)\.weight$")
        packed = set()
        method = self.quantization["quant_method"]
        for name in self.source:
            module = name.removesuffix(".weight")
            if linear.match(name) and name not in self.out or method in ("gptq", "modelopt") and linear.match(name) and \
                    self.out[name][0] != self.source[name][0] or linear.match(name) and self.quantization.get("format") == "mxfp8-quantized" \
                    and module not in self.quantization["ignore"]:
                if self.check_packed(module):
                    packed.add(module)
        for name in self.out:
            if name.rpartition(".")[0] in packed:
                continue
            if linear.match(name):
                self.weight(name)
            elif not name.endswith(("weight_scale", "weight_scale_inv")):
                self.same(name)
        for name in self.out:
            if name.rpartition(".")[0] in packed and name not in self.used:
                self.find(name, "belongs to no part of its packed weight")
        for name in self.out:
            if name.endswith(("weight_scale", "weight_scale_inv")) and name not in self.used:
                self.find(name, "belongs to no quantized weight")
        for name in self.source:
            if name not in self.out and name.removesuffix(".weight") not in packed:
                self.find(name, "is missing")
        for name in self.out:
            if name not in self.source and name not in self.used:
                self.find(name, "is not in the source")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--max-error", type=float, default=0.05)
    parser.add_argument("--library", action="store_true")
    args = parser.parse_args()
    checker = Checker(args.source, args.out, args.max_error, args.library)
    checker.run()
    for finding in checker.findings:
        print(finding)
    q = checker.quantization
    print(f"{args.out}: {q['quant_method']}, {len(checker.errors)} quantized weights, mean relative RMS error "
          f"{np.mean(checker.errors):.4f}, worst {np.max(checker.errors):.4f}, {len(checker.findings)} findings")
    sys.exit(1 if checker.findings else 0)


if __name__ == "__main__":
    main()
