#!/usr/bin/env python3
"""Octavo beside llama.cpp and OpenVINO GenAI on one model, same minutes, same threads: decode and prefill tokens per second.

    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" pip install llama-cpp-python --no-binary llama-cpp-python
    (where the CPU shows AMX but does not let processes use it: -DGGML_NATIVE=OFF -DGGML_AVX512=ON
    -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON)
    pip install gguf numpy openvino-genai "optimum-intel[openvino]"
    python tools/compare_peers.py MODEL [--octavo build/release/octavo] [--rounds 3] [--prompt 512] [--generate 64]
                                  [--work FOLDER] [--no-openvino]

MODEL is a BF16 Llama folder. The GGUFs (BF16, and Q8_0 and Q4_K_M by llama.cpp's own quantizer) and the OpenVINO INT8
export are made once, in --work. Octavo also runs the Q8_0 file itself. Each round measures every engine once, one after the other; medians and the ratios to them are
printed. llama.cpp: decode of single tokens and one batch of --prompt tokens, as llama-bench measures; OpenVINO: its
own TTFT and TPOT with a prompt of the same length.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np


def read_safetensors(path):
    data = np.memmap(path, np.uint8, "r")
    size = int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:8 + size]))
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            assert t["dtype"] == "BF16", name
            yield name, data[8 + size + begin:8 + size + end].view(np.uint16).reshape(t["shape"])


def write_bf16_gguf(model, out):
    import gguf
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")  # token text does not matter here, only its number
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{i}>" for i in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_token_merges(["a b"])
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, w in read_safetensors(model / "model.safetensors"):
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            new = f"blk.{layer}.{names[rest.removesuffix('.weight')]}.weight"
        else:
            new = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                   "lm_head.weight": "output.weight"}[name]
        if ".attn_q." in new or ".attn_k." in new:  # pairs, as llama.cpp's RoPE wants them
            n = heads if ".attn_q." in new else kv_heads
            w = w.reshape(n, 2, w.shape[0] // n // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        if w.ndim == 1:
            writer.add_tensor(new, (w.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(new, np.ascontiguousarray(w).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    def __init__(self, path, threads, context):
        import llama_cpp as lc
        self.lc = lc
        self.quiet = lc.llama_log_callback(lambda *_: None)
        lc.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        model_params = lc.llama_model_default_params()
        self.model = lc.llama_model_load_from_file(str(path).encode(), model_params)
        assert self.model, path
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = lc.llama_init_from_model(self.model, params)
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))

    def _decode(self, tokens):
        array = (self.lc.llama_token * len(tokens))(*tokens)
        assert self.lc.llama_decode(self.context, self.lc.llama_batch_get_one(array, len(tokens))) == 0
        self.lc.llama_synchronize(self.context)

    def measure(self, prompt, generate):
        rng = np.random.default_rng(1)
        tokens = [int(t) for t in rng.integers(0, self.vocab, prompt)]
        memory = self.lc.llama_get_memory(self.context)
        self.lc.llama_memory_clear(memory, True)
        self._decode(tokens)  # warm
        self.lc.llama_memory_clear(memory, True)
        start = time.perf_counter()
        self._decode(tokens)
        prefill = prompt / (time.perf_counter() - start)
        self.lc.llama_memory_clear(memory, True)
        self._decode(tokens[:1])
        start = time.perf_counter()
        for i in range(generate):
            self._decode([tokens[i % prompt]])
        return prefill, generate / (time.perf_counter() - start)


class OpenVino:
    def __init__(self, folder, threads):
        import openvino_genai
        self.genai = openvino_genai
        self.pipe = openvino_genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=threads)

    def measure(self, prompt, generate):
        import openvino
        config = self.genai.GenerationConfig(max_new_tokens=generate, ignore_eos=True, do_sample=False)
        for seed in (1, 2):  # the first warms up; another prompt, since the pipeline keeps prefixes
            ids = np.random.default_rng(seed).integers(5, 30000, (1, prompt)).astype(np.int64)
            inputs = self.genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones((1, prompt), np.int64)))
            metrics = self.pipe.generate(inputs, config).perf_metrics
        return prompt / (metrics.get_ttft().mean * 1e-3), 1 / (metrics.get_tpot().mean * 1e-3)


def measure_octavo(args, model, *flags):
    command = [args.octavo, "bench", model, *flags, "--threads", args.threads, "--prompt", args.prompt, "--generate",
               args.generate, "--repeat", 3, "--json"]
    out = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout)
    return out["prefill"]["tokens_per_second"], out["decode"]["tokens_per_second"]


def prepare(args):
    args.work.mkdir(parents=True, exist_ok=True)
    bf16 = args.work / "bf16.gguf"
    if not bf16.exists():
        write_bf16_gguf(args.model, bf16)
    ggufs = {"BF16": bf16}
    for name in ("Q8_0", "Q4_K_M"):
        ggufs[name] = args.work / (name.lower() + ".gguf")
        if not ggufs[name].exists():
            import llama_cpp as lc
            params = lc.llama_model_quantize_default_params()
            params.ftype, params.nthread = getattr(lc, "LLAMA_FTYPE_MOSTLY_" + name), args.threads
            assert lc.llama_model_quantize(str(bf16).encode(), str(ggufs[name]).encode(), ctypes.byref(params)) == 0
    openvino = args.work / "openvino-int8"
    if not args.no_openvino and not openvino.exists():
        subprocess.run([pathlib.Path(sys.executable).parent / "optimum-cli", "export", "openvino", "--model",
                        str(args.model), "--task", "text-generation-with-past", "--weight-format", "int8", str(openvino)], check=True)
    return ggufs, openvino


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--octavo", default="build/release/octavo")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("models/peers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--no-openvino", action="store_true")
    args = parser.parse_args()
    ggufs, openvino = prepare(args)

    engines = {f"octavo {scheme}": (lambda s=scheme: measure_octavo(args, args.model, "--quantization", s))
               for scheme in ("fp8", "int8", "bf16", "int4")}
    engines["octavo Q8_0"] = lambda: measure_octavo(args, ggufs["Q8_0"])
    context = args.prompt + args.generate + 64
    for name, path in ggufs.items():
        engine = LlamaCpp(path, args.threads, context)
        engines["llama.cpp " + name] = lambda e=engine: e.measure(args.prompt, args.generate)
    if not args.no_openvino:
        engine = OpenVino(openvino, args.threads)
        engines["OpenVINO INT8"] = lambda e=engine: e.measure(args.prompt, args.generate)

    samples = {name: [] for name in engines}
    for _ in range(args.rounds):
        for name, measure in engines.items():
            samples[name].append(measure())
    median = {name: tuple(statistics.median(s[i] for s in values) for i in (0, 1)) for name, values in samples.items()}
    fp8, int8 = median["octavo fp8"], median["octavo int8"]
    print(f"{args.model}: {args.threads} threads, prefill {args.prompt}, decode {args.generate}, medians of {args.rounds}")
    print(f"{'':16s} {'prefill':>9s} {'decode':>9s}   fp8 / this (prefill, decode)   int8 / this")
    for name, (prefill, decode) in median.items():
        print(f"{name:16s} {prefill:9.0f} {decode:9.1f}   {fp8[0] / prefill:10.2f} {fp8[1] / decode:8.2f}"
              f"              {int8[0] / prefill:10.2f} {int8[1] / decode:8.2f}")


if __name__ == "__main__":
    main()
