#!/usr/bin/env python3
"""Per-item log-likelihoods by lm-evaluation-harness itself, over a plain FP32 Llama in numpy: the golden of
`octavo evaluate --task arc_easy|lambada`.

    pip install lm-eval==0.4.13 tokenizers safetensors numpy
    python lm_eval_items.py FOLDER ARC_EASY.jsonl LAMBADA.jsonl OUT.json [--limit 200]

The harness cuts context and continuation, counts and judges; the model only gives logits. FOLDER: BF16 safetensors and
tokenizer.json. OUT: {"arc_easy": {"items": [{"loglikelihoods", "greedy", "acc", "acc_norm"}], "acc", "acc_norm"},
"lambada": {"items": [{"loglikelihood", "greedy"}], "perplexity", "acc"}}.
"""
import argparse, json, os, pathlib, tempfile

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
import numpy as np
import yaml
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer


def read_bf16(path):
    data = np.memmap(path, dtype=np.uint8, mode="r")
    size = int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:8 + size]))
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + o for o in t["data_offsets"])
        assert t["dtype"] == "BF16", name
        bits = np.frombuffer(bytes(data[begin:end]), dtype=np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(t["shape"])
    return tensors


class Llama:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.w = read_bf16(folder / "model.safetensors")
        dim = self.config["head_dim"]
        self.frequencies = self.config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.w[name]

    def rotate(self, x):  # [heads, T, dim]
        angles = np.arange(x.shape[1])[:, None] * self.frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def logits(self, ids, rows):
        """Logits [len(rows), vocab] for one sequence."""
        c, w = self.config, self.w
        heads, kv_heads, dim, length = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(ids)
        mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        x = w["model.embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = ((h @ w[f"{p}self_attn.{n}_proj.weight"].T).reshape(length, -1, dim).swapaxes(0, 1) for n in "qkv")
            k, v = (np.repeat(t, heads // kv_heads, axis=0) for t in (self.rotate(k), v))
            s = self.rotate(q) @ k.swapaxes(1, 2) * np.float32(dim ** -0.5) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            o = (s / s.sum(-1, keepdims=True)) @ v
            x = x + o.swapaxes(0, 1).reshape(length, -1) @ w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            g, u = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
            x = x + (g / (1 + np.exp(-g)) * u) @ w[p + "mlp.down_proj.weight"].T
        return self.norm(x[rows], "model.norm.weight") @ w["model.embed_tokens.weight"].T  # tied head


class NumpyLM(TemplateLM):
    def __init__(self, folder):
        super().__init__()
        self.model, self.tokenizer = Llama(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.done = 0

    eot_token_id = property(lambda self: self.model.config["eos_token_id"])
    prefix_token_id = property(lambda self: self.model.config["bos_token_id"])
    max_length = property(lambda self: self.model.config["max_position_embeddings"])

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
        results = []
        for _, context, continuation in requests:
            ids = (context + continuation)[-(self.max_length + 1):][:-1]
            logits = self.model.logits(ids, np.arange(len(ids) - len(continuation), len(ids))).astype(np.float64)
            highest = logits.max(-1, keepdims=True)
            logprobs = logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))
            picked = logprobs[np.arange(len(continuation)), continuation]
            results.append((float(picked.sum()), bool((logits.argmax(-1) == continuation).all())))
            self.done += 1
            if self.done % 100 == 0:
                print(self.done, "spans", flush=True)
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def generate_until(self, requests, disable_tqdm=False):
        raise NotImplementedError


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("arc_easy", type=pathlib.Path)
    parser.add_argument("lambada", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=200)
    args = parser.parse_args()
    data = lambda path: {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path.resolve())}},
                         "test_split": "test"}
    metric = lambda name: {"metric": name, "aggregation": "perplexity" if name == "perplexity" else "mean",
                           "higher_is_better": name != "perplexity"}
    tasks = {
        "octavo_arc_easy": data(args.arc_easy) | {
            "output_type": "multiple_choice", "doc_to_text": "{{query}}\nAnswer:", "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold", "metric_list": [metric("acc"), metric("acc_norm")]},
        "octavo_lambada": data(args.lambada) | {
            "output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
            "doc_to_target": "{{' '+text.split(' ')[-1]}}", "metric_list": [metric("perplexity"), metric("acc")]},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, task in tasks.items():
            (pathlib.Path(folder) / f"{name}.yaml").write_text(yaml.safe_dump({"task": name} | task))
        results = simple_evaluate(model=NumpyLM(args.folder), tasks=list(tasks), limit=args.limit, log_samples=True,
                                  task_manager=TaskManager(include_path=folder, include_defaults=False),
                                  bootstrap_iters=0)
    number = lambda x: round(x, 5)
    out = {}
    for name in tasks:
        scores, items = results["results"][name], []
        for sample in sorted(results["samples"][name], key=lambda s: s["doc_id"]):
            pairs = sample["filtered_resps"]
            pairs = [pairs] if not isinstance(pairs[0], (list, tuple)) else pairs
            if name == "octavo_arc_easy":
                items.append({"loglikelihoods": [number(p[0]) for p in pairs], "greedy": [p[1] for p in pairs],
                              "acc": sample["acc"], "acc_norm": sample["acc_norm"]})
            else:
                items.append({"loglikelihood": number(pairs[0][0]), "greedy": pairs[0][1]})
        metrics = {key.split(",")[0]: value for key, value in scores.items() if key.endswith(",none") and "stderr" not in key}
        out[name.removeprefix("octavo_")] = metrics | {"items": items}
        print(name, metrics)
    text = "{" + ",\n".join(f'"{task}": {{"metrics": ' + json.dumps({k: v for k, v in row.items() if k != "items"}) +
                            ', "items": [\n' + ",\n".join(map(json.dumps, row["items"])) + "]}"
                            for task, row in out.items()) + "}\n"
    args.out.write_text(text)


if __name__ == "__main__":
    main()
