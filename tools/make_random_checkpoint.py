#!/usr/bin/env python3
"""Writes a random BF16 checkpoint of a given shape, for measurements where only the shape counts.

    pip install numpy && python tools/make_random_checkpoint.py OUT [--layers 16] [--hidden 2048] ...

The defaults are the 1B shape of docs/kernels.md (Llama, 1.1 G parameters, 2.2 GB). With --experts N it is a Qwen3-MoE:
N experts of --intermediate in every layer, --per-token of them for each token. Weights are normal with deviation
1 / sqrt(inputs), the same for the same seed.
"""
import argparse
import json
import pathlib
import struct

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name, value in dict(layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8, head_dim=64, vocab=32000,
                            context=8192, seed=1, experts=0, per_token=8).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=False)

    shapes = {"model.embed_tokens.weight": (a.vocab, a.hidden), "model.norm.weight": (a.hidden,),
              "lm_head.weight": (a.vocab, a.hidden)}
    for i in range(a.layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (a.hidden,), p + "post_attention_layernorm.weight": (a.hidden,),
                   p + "self_attn.q_proj.weight": (a.heads * a.head_dim, a.hidden),
                   p + "self_attn.k_proj.weight": (a.kv_heads * a.head_dim, a.hidden),
                   p + "self_attn.v_proj.weight": (a.kv_heads * a.head_dim, a.hidden),
                   p + "self_attn.o_proj.weight": (a.hidden, a.heads * a.head_dim)}
        if a.experts:
            shapes |= {p + "mlp.gate.weight": (a.experts, a.hidden), p + "self_attn.q_norm.weight": (a.head_dim,),
                       p + "self_attn.k_norm.weight": (a.head_dim,)}
        for mlp in [p + f"mlp.experts.{e}." for e in range(a.experts)] or [p + "mlp."]:
            shapes |= {mlp + "gate_proj.weight": (a.intermediate, a.hidden),
                       mlp + "up_proj.weight": (a.intermediate, a.hidden),
                       mlp + "down_proj.weight": (a.hidden, a.intermediate)}
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(a.seed)
    with open(a.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            values = np.ones(shape, np.float32) if len(shape) == 1 else \
                rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[1]))
            bits = values.view(np.uint32)
            bits += 0x7FFF + ((bits >> 16) & 1)
            file.write((bits >> 16).astype("<u2").tobytes())
    model = dict(architectures=["LlamaForCausalLM"], model_type="llama") if not a.experts else dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=a.experts,
        num_experts_per_tok=a.per_token, moe_intermediate_size=a.intermediate, norm_topk_prob=True)
    (a.out / "config.json").write_text(json.dumps(model | dict(
        hidden_act="silu", hidden_size=a.hidden,
        intermediate_size=a.intermediate, num_hidden_layers=a.layers, num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads, head_dim=a.head_dim, vocab_size=a.vocab, max_position_embeddings=a.context,
        rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=1,
        eos_token_id=2), indent=2) + "\n")
    print(f"{a.out}: {sum(int(np.prod(s)) for s in shapes.values()) / 1e6:.0f} M parameters, {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
