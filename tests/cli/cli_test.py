#!/usr/bin/env python3
"""The binary as a person uses it: exit codes, errors that name the remedy, JSON keys, files whole or absent.

    python3 tests/cli/cli_test.py OCTAVO TEST_DATA
"""
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

OCTAVO, DATA = None, None


def run(*arguments, code=0, **options):
    result = subprocess.run([OCTAVO, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, expected {code}: {arguments}\n{result.stdout}\n{result.stderr}")
    return result


def full_disk(bytes_left):
    """For preexec_fn: writes past so many bytes of a file fail, as on a full disk."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, bytes_left))
    return limit


def peak_memory(command):
    """Bytes resident at the peak of a run. (The system's own count starts with what Python had before it.)"""
    process = subprocess.Popen([OCTAVO, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        peak = max([peak] + [1024 * int(line.split()[1]) for line in lines])
        time.sleep(0.002)
    assert process.returncode == 0, command
    return peak


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="octavo-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = DATA / "tiny" / "llama_untied_hd64"

    def copy_model(self, name="copy", source=None):
        out = self.folder / name
        shutil.copytree(source or self.model, out)
        for path in out.iterdir():
            path.chmod(0o644)
        return out

    def change_config(self, model, **changes):
        path = model / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))


class Help(Case):
    def test_help_lists_commands_in_groups(self):
        text = run("--help").stdout
        for word in ("run", "quantize", "convert", "inspect", "evaluate", "sensitivity", "tokenize", "logits", "bench", "Prove"):
            self.assertIn(word, text)
        self.assertTrue(run("--version").stdout.startswith("octavo "))

    def test_wrong_usage_is_exit_code_2(self):
        run(code=2)
        run("frobnicate", code=2)
        run("bench", self.model, "--no-such-flag", code=2)


class Logits(Case):
    def test_file_has_what_transformers_users_compare(self):
        out = self.folder / "logits.safetensors"
        run("logits", self.model, "--ids", "5,6,7,8", "--out", out, "--hidden", "--quantization", "float32")
        tensors = read_safetensors(out)
        self.assertEqual(tensors["input_ids"][:2], ("I64", [4]))
        self.assertEqual(tensors["logits"][:2], ("F32", [4, 320]))
        self.assertEqual([tensors[f"hidden.{i}"][1] for i in range(4)], [[4, 192]] * 4)

    def test_chunks_and_threads_do_not_change_a_bit(self):
        ids = ",".join(str(3 + i * 7 % 300) for i in range(70))
        outputs = []
        for flags in ([], ["--chunk", "1"], ["--chunk", "7", "--threads", "1"], ["--threads", "3", "--chunk", "64"]):
            out = self.folder / "l.safetensors"
            run("logits", self.model, "--ids", ids, "--out", out, "--quantization", "fp8", *flags)
            outputs.append(out.read_bytes())
        self.assertEqual(len(set(outputs)), 1)

    def test_ids_outside_the_vocabulary(self):
        for ids in ("320", "-1", "2147483648", "1,,2", "1.5", "x"):
            result = run("logits", self.model, f"--ids={ids}", "--out", self.folder / "x.safetensors", code=1)
            self.assertTrue("vocabulary" in result.stderr or "list of token ids" in result.stderr, result.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_longer_than_the_context(self):
        result = run("logits", self.model, "--ids", ",".join(["5"] * 513), "--out", self.folder / "x", code=1)
        for word in ("context", "513", "512"):
            self.assertIn(word, result.stderr)


class Quantize(Case):
    def test_schemes_load_again_and_give_the_same_logits_as_quantizing_at_load(self):
        for scheme in ("fp8", "fp8-block", "fp8-tensor", "int8"):
            out = self.folder / scheme
            summary = json.loads(run("quantize", self.model, out, "--scheme", scheme, "--json").stdout)
            self.assertGreater(summary["bytes_before"], summary["bytes_after"])
            self.assertGreater(summary["worst_error"], 0)
            self.assertTrue(summary["worst_tensor"])
            if scheme == "fp8-tensor":
                continue  # on disk q, k, v share one scale; at load each has its own
            kv = "int8" if scheme == "int8" else "fp8_e4m3"
            run("logits", self.model, "--ids", "9,8,7", "--out", self.folder / "a", "--quantization", scheme)
            run("logits", out, "--ids", "9,8,7", "--out", self.folder / "b", "--kv-cache-dtype", kv)
            self.assertEqual((self.folder / "a").read_bytes(), (self.folder / "b").read_bytes(), scheme)

    def test_ignore_rules(self):
        out = self.folder / "out"
        result = run("quantize", self.model, out, "--scheme", "fp8", "--ignore", r"re:.*down_proj$", "--ignore",
                     "re:.*nomatch.*", "--ignore", "model.layers.0.self_attn.q_proj")
        self.assertIn("nomatch", result.stdout + result.stderr)
        types = {name: t[0] for name, t in read_safetensors(out / "model.safetensors").items()}
        self.assertEqual(types["model.layers.1.mlp.down_proj.weight"], "BF16")
        self.assertEqual(types["model.layers.0.self_attn.q_proj.weight"], "BF16")
        self.assertEqual(types["model.layers.1.self_attn.q_proj.weight"], "F8_E4M3")
        self.assertEqual(types["lm_head.weight"], "BF16")
        run("logits", out, "--ids", "9,8,7", "--out", self.folder / "b")
        bad = run("quantize", self.model, self.folder / "bad", "--scheme", "fp8", "--ignore", "re:(", code=1)
        self.assertIn("re:(", bad.stderr)

    def test_output_is_whole_or_absent(self):
        model = self.copy_model()
        self.assertIn("OUT", run("quantize", model, model, "--scheme", "fp8", code=1).stderr.upper())
        run("quantize", model, model / "inside", "--scheme", "fp8", code=1)
        full = self.folder / "full"
        full.mkdir()
        (full / "precious").write_text("x")
        run("quantize", model, full, "--scheme", "fp8", code=1)
        self.assertEqual([p.name for p in full.iterdir()], ["precious"])
        self.assertIn("known", run("quantize", model, self.folder / "o", "--scheme", "fp9", code=1).stderr.lower())
        # A NaN in a weight names the tensor, and nothing is left behind.
        weights = model / "model.safetensors"
        data = bytearray(weights.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        begin = 8 + size + header["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
        data[begin:begin + 2] = b"\xc0\x7f"
        weights.write_bytes(data)
        self.assertIn("model.layers.1.mlp.up_proj.weight", run("quantize", model, self.folder / "o", "--scheme", "fp8", code=1).stderr)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["copy", "full"])


class BadModels(Case):
    def check(self, model, *words):
        for command in (["inspect", model], ["logits", model, "--ids", "5", "--out", self.folder / "x"], ["bench", model]):
            result = run(*command, code=1)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertLess(len(result.stderr.splitlines()), 8, result.stderr)

    def test_missing_folder(self):
        self.check(self.folder / "missing", "missing")

    def test_unsupported_model_type_names_the_supported_ones(self):
        model = self.copy_model()
        self.change_config(model, model_type="mamba2", architectures=["Mamba2ForCausalLM"])
        self.check(model, "mamba2", "llama", "qwen3")

    def test_a_million_tensors_do_not_fill_the_memory(self):
        model = self.copy_model()
        for count, word in ((1000000, "300000 tensors"), (300000, "the head is missing")):
            tensors = ",".join(f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(count))
            header = ("{" + tensors + "}").encode()
            (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
            with subprocess.Popen([OCTAVO, "inspect", str(model)], stderr=subprocess.PIPE, text=True) as process:
                text = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 1)
            self.assertIn(word, text)
            self.assertLess(usage.ru_maxrss, 200_000, f"kB for {count} tensors")

    def test_truncated_weights(self):
        model = self.copy_model()
        data = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(data[:-100])
        self.check(model, "model.safetensors")

    def test_missing_tensor_and_wrong_shape(self):
        model = self.copy_model()
        self.change_config(model, num_hidden_layers=4)
        result = run("logits", model, "--ids", "5", "--out", self.folder / "x", code=1)
        self.assertIn("model.layers.3.", result.stderr)
        self.change_config(model, num_hidden_layers=3, intermediate_size=128)
        result = run("logits", model, "--ids", "5", "--out", self.folder / "x", code=1)
        self.assertIn("mlp", result.stderr)

    def test_json_errors_are_json(self):
        result = run("inspect", self.folder / "missing", "--json", code=1)
        self.assertTrue(json.loads(result.stdout)["error"]["what"])


class Inspect(Case):
    def test_plan_dataflow_and_hardware(self):
        text = run("inspect", self.model, "--quantization", "fp8", "--dataflow", "--hardware", "--tensors").stdout
        for word in ("fp8_e4m3 per row", "silu_gate", "attention", "lm_head", "KV", "Hardware", "BF16 dot product"):
            self.assertIn(word, text)
        out = json.loads(run("inspect", self.model, "--quantization", "int8", "--dataflow", "--json").stdout)
        self.assertEqual(out["scheme"], "int8")
        self.assertEqual(len(out["dataflow"]), 3)
        self.assertGreater(out["memory"]["kv_bytes_per_token"], 0)

    def test_forced_isa(self):
        for isa in ("reference", "avx2"):
            out = json.loads(run("inspect", self.model, "--quantization", "fp8", "--dataflow", "--isa", isa, "--json").stdout)
            kernels = {o["kernel"].split("/")[0] for o in out["dataflow"][0]}
            self.assertEqual(kernels, {isa})
        self.assertIn("avx512", run("bench", self.model, "--isa", "mmx", code=1).stderr)


def byte_tokenizer(size):
    """tokenizer.json whose ids 0 to 255 are the bytes, filled up to `size` with unused names."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    vocab = {chr(b if b in plain else next(shifted)): b for b in range(256)}
    vocab |= {f"<unused{i}>": i for i in range(256, size)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level,
            "post_processor": None, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


class SensitivityAndPlans(Case):
    def setUp(self):
        super().setUp()
        self.model = self.copy_model()
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 26) for i in range(900)))
        self.flags = ["sensitivity", self.model, "--text", self.text, "--tokens", "256", "--context", "64", "--scheme",
                      "fp8,int4"]
        self.result, self.plan = self.folder / "s.json", self.folder / "plan.json"

    def search(self, *flags, code=0):
        return run("sensitivity", self.model, "--from", self.result, *flags, code=code)

    def test_measured_searched_quantized_and_run(self):
        shown = run(*self.flags, "--out", self.result).stdout
        for word in ("KV-K", "down", "head", "costliest", "keep wide"):
            self.assertIn(word, shown)
        self.assertLessEqual(max(map(len, shown.splitlines())), 80)
        result = json.loads(self.result.read_text())
        self.assertEqual(result["octavo_sensitivity"], 1)
        self.assertEqual(len(result["entries"]), result["model"]["layers"] * (7 * 2 + 2) + 2)
        self.assertEqual(set(result["entries"][0]),
                         {"layer", "role", "scheme", "perplexity_change", "perplexity_change_error", "kl",
                          "output_error", "bytes", "base_bytes", "class"})
        found = json.loads(self.search("--budget", "7bpw", "--plan-out", self.plan, "--json").stdout)
        self.assertLessEqual(found["best"]["bits_per_weight"], 7)
        self.assertLess(found["best"]["kl"], found["uniform"]["int4"]["kl"])
        self.assertLessEqual(max(map(len, self.search("--budget", "7bpw").stdout.splitlines())), 100)
        linears = json.loads(self.plan.read_text())["linears"]
        self.assertGreater(len(set(linears.values())), 1)
        # One plan: at load, and as a checkpoint.
        run("logits", self.model, "--ids", "9,8,7", "--out", self.folder / "a", "--plan", self.plan)
        quantized = self.folder / "quantized"
        summary = run("quantize", self.model, quantized, "--plan", self.plan).stdout
        kv = json.loads(self.plan.read_text())["kv"]
        self.assertEqual("KV formats are not written" in summary, any(set(layer.values()) != {"bf16"} for layer in kv))
        run("logits", quantized, "--ids", "9,8,7", "--out", self.folder / "b", "--kv-cache-dtype", "bf16")
        self.assertEqual((self.folder / "a").read_bytes(), (self.folder / "b").read_bytes())
        self.assertIn("plan.json", run("inspect", self.model, "--plan", self.plan).stdout)

    def test_an_entry_is_the_comparison_of_its_plan(self):
        run(*self.flags, "--out", self.result)
        result = json.loads(self.result.read_text())
        entry = next(e for e in result["entries"] if (e["layer"], e["role"], e["scheme"]) == (1, "up_proj", "int4"))
        linears = {f"model.layers.{layer}.{part}": "bf16" for layer in range(result["model"]["layers"])
                   for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")} | {"lm_head": "bf16"}
        linears["model.layers.1.mlp.up_proj"] = "int4"
        self.plan.write_text(json.dumps({"octavo_plan": 1, "model": result["model"], "base": "bf16", "linears": linears,
                                         "kv": [{"k": "bf16", "v": "bf16"}] * result["model"]["layers"]}))
        out = json.loads(run("evaluate", self.model, "--text", self.text, "--context", "64", "--windows", "4",
                             "--quantization", "bf16", "--against-plan", self.plan, "--json").stdout)
        self.assertEqual(out["kl_mean"], entry["kl"])
        self.assertEqual(out["perplexity_change"], entry["perplexity_change"])
        self.assertEqual(out["base_perplexity"], result["base_perplexity"])

    def test_killed_at_any_moment_it_goes_on(self):
        whole = run(*self.flags, "--json").stdout
        command = [OCTAVO, *map(str, self.flags), "--out", str(self.result), "--json"]
        for attempt in range(10):
            flags = ["--resume"] if attempt > 0 else []
            process = subprocess.Popen(command + flags, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=0.1 + 0.1 * attempt)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.assertTrue(process.returncode != 0 or self.result.exists())
            if self.result.exists():
                break
            log = self.folder / "s.json.log"
            if log.exists():
                self.assertIn("--resume", run(*command[1:], code=1).stderr)
        if not self.result.exists():
            run(*command[1:], "--resume")
        self.assertEqual(json.loads(self.result.read_text()), json.loads(whole))
        self.assertFalse((self.folder / "s.json.log").exists())

    def test_a_full_disk_is_an_error_and_leaves_no_result(self):
        for size in (0, 1000, 6000):  # of the log, an entry, the result
            error = run(*self.flags, "--resume", "--out", self.result, code=1, preexec_fn=full_disk(size)).stderr
            self.assertIn("s.json", error)
            self.assertFalse(self.result.exists())
        run(*self.flags, "--resume", "--out", self.result)
        self.assertEqual(json.loads(self.result.read_text()), json.loads(run(*self.flags, "--json").stdout))

    def test_a_plan_for_another_model_and_other_bad_input(self):
        run(*self.flags, "--out", self.result)
        self.search("--budget", "8bpw", "--plan-out", self.plan)
        other = self.folder / "other"
        shutil.copytree(DATA / "tiny" / "qwen3_qk_norm", other)
        shutil.copy(self.model / "tokenizer.json", other)
        for command in (["run", other, "--plan", self.plan, "--prompt", "x"], ["inspect", other, "--plan", self.plan],
                        ["quantize", other, self.folder / "o", "--plan", self.plan]):
            error = run(*command, code=1).stderr
            self.assertIn("the plan is for another model", error)
            self.assertIn("architecture LlamaForCausalLM", error)
        self.assertFalse((self.folder / "o").exists())
        self.assertIn("another model", run("sensitivity", other, "--from", self.result, code=1).stderr)
        both = run("inspect", self.model, "--plan", self.plan, "--quantization", "fp8", code=1).stderr
        self.assertIn("fp8", both)
        plan = json.loads(self.plan.read_text())
        plan["linears"].pop("model.layers.1.mlp.down_proj")
        self.plan.write_text(json.dumps(plan))
        self.assertIn("model.layers.1.mlp.down_proj", run("inspect", self.model, "--plan", self.plan, code=1).stderr)
        for flags, word in ((["--budget", "1bpw"], "--budget"), (["--budget", "7"], "5.5bpw"),
                            (["--plan-out", self.plan], "--budget"), (["--text", self.text], "--from"),
                            (["--budget", "7bpw", "--depth", "64"], "--depth, --budget"), (["--out", "f"], "--out"),
                            (["--kv", "int8"], "--kv"), (["--context", "64"], "--context"),
                            (["--scheme", "nvfp4"], "nvfp4")):
            self.assertIn(word, self.search(*flags, code=1).stderr)
        self.search("--budget", "1MB", "--depth", "64")
        for flag in ("--split-fused", "--lower-head"):
            self.assertIn(f"where:    {flag}\n", run(*self.flags, flag, code=1).stderr)
        missing = ["sensitivity", self.model, "--text", self.folder / "none"]
        self.assertIn("--text", run(*missing, code=1).stderr)
        self.assertIn("--tokens", run("sensitivity", self.model, "--text", self.text, "--tokens", "30", code=1).stderr)


class Calibrate(Case):
    def test_killed_at_twenty_moments_it_gives_the_same_bytes(self):
        model, text = self.copy_model(), self.folder / "text.txt"
        (model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        text.write_text("\n\n".join(f"Passage {i}: " + " ".join(str(i * j % 977) for j in range(90)) for i in range(60)))
        command = ["quantize", model, self.folder / "out", "--scheme", "fp8-static", "--calibrate", text, "--samples",
                   "24", "--length", "128", "--threads", "1", "--memory-limit", "1"]

        def digest():
            return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (self.folder / "out").iterdir()}

        start = time.monotonic()
        run(*command)
        seconds = time.monotonic() - start
        expected = digest()
        self.assertIn("calibration.npz", expected)
        shutil.rmtree(self.folder / "out")
        dice, killed = random.Random(5), 0
        while killed < 20:
            process = subprocess.Popen([OCTAVO, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=dice.uniform(0.0, 0.8 * seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
                self.assertFalse((self.folder / "out").exists() and not digest() == expected, "half written")
            if (self.folder / "out").exists():  # it came to its end
                self.assertEqual(digest(), expected)
                shutil.rmtree(self.folder / "out")
        run(*command)
        self.assertEqual(digest(), expected)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["copy", "out", "text.txt"])

    def calibrated(self, samples):
        """A model with a tokenizer, and text for so many samples of 128 tokens."""
        model, text = self.copy_model(), self.folder / "text.txt"
        (model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        text.write_text("\n\n".join(f"Passage {i}: " + " ".join(str(i * j % 977) for j in range(90))
                                    for i in range(samples // 2 + 4)))
        return model, text

    def test_flags_without_effect_are_named(self):
        model, text = self.calibrated(8)
        for flags in (["--samples", "4"], ["--length", "64"], ["--damping", "0.1"], ["--act-order"], ["--seed", "2"],
                      ["--memory-limit", "10"], ["--wide-activations"], ["--estimator", "mse"],
                      ["--act-order", "--calibrate", text, "--rounding", "nearest"],
                      ["--damping", "0.1", "--calibrate", text, "--rounding", "awq"]):
            error = run("quantize", model, self.folder / "out", "--scheme", "fp8", *flags, code=1).stderr
            self.assertIn("would do nothing", error)
            self.assertIn(flags[0], error)
        self.assertIn("int4-g32-zp", run("quantize", "--help").stdout)

    def test_the_context_bounds_the_length_that_was_not_asked_for(self):
        model, text = self.calibrated(64)
        self.change_config(model, max_position_embeddings=200)
        command = ["quantize", model, self.folder / "out", "--scheme", "fp8", "--calibrate", text, "--rounding",
                   "nearest", "--samples", "4"]
        self.assertIn("--length", run(*command, "--length", "201", code=1).stderr)
        run(*command)
        report = json.loads((self.folder / "out" / "calibration.json").read_text())
        self.assertEqual((report["calibration"]["length"], report["calibration"]["samples"]), (200, 4))
        self.assertEqual(sum(band["tokens"] for band in report["calibration"]["coverage"]), 800)
        self.assertEqual(report["calibration"]["files"][0]["tokens"], 800)

    def test_a_dry_run_says_the_memory(self):
        model, text = self.calibrated(600)
        ways = {"gptq": ["--scheme", "int8", "--calibrate", text],
                "awq": ["--scheme", "int4-g32", "--calibrate", text, "--rounding", "awq"],
                "kv": ["--scheme", "bf16", "--calibrate", text, "--kv", "int8:static", "--refit-temperature"],
                "spilled": ["--scheme", "int8", "--calibrate", text, "--memory-limit", "20"],
                "rounding": ["--scheme", "fp8"]}
        for way, flags in ways.items():
            size = ["--samples", "600", "--length", "128"] if "--calibrate" in flags else []
            command = ["quantize", model, self.folder / way, *flags, *size, "--threads", "2"]
            estimate = json.loads(run(*command, "--dry-run", "--json").stdout)
            self.assertFalse((self.folder / way).exists())
            memory = peak_memory(command)
            with self.subTest(way):
                self.assertLess(abs(estimate["memory_bytes"] - memory), 0.15 * memory, (estimate, memory))
            self.assertGreater(estimate["seconds"], 0)


class Evaluate(Case):
    def setUp(self):
        super().setUp()
        self.model = self.copy_model()
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 26) for i in range(700)))
        self.data = self.folder / "items.jsonl"
        self.data.write_text("".join(
            json.dumps({"query": f"Question: {i}?", "choices": ["one", "two or more"], "gold": i % 2}) + "\n"
            for i in range(400)))

    def test_against_a_plan_and_its_budget(self):
        flags = ["evaluate", self.model, "--text", self.text, "--context", "64", "--windows", "3"]
        out = json.loads(run(*flags, "--quantization", "bf16", "--against-quantization", "fp8", "--error-budget",
                             "--json").stdout)
        for key in ("mean", "standard_error", "median", "p99", "p999", "max"):
            self.assertGreater(out[f"kl_{key}"], 0)
        self.assertEqual([row["part"] for row in out["error_budget"]],
                         ["weights", "activations", "weights and activations", "K", "V", "kernels", "all"])
        self.assertEqual(out["error_budget"][-1]["kl_mean"], out["kl_mean"])
        alone = json.loads(run(*flags, "--quantization", "fp8", "--json").stdout)
        self.assertAlmostEqual(out["perplexity"], alone["perplexity"], places=6)
        text = run(*flags, "--quantization", "bf16", "--against-quantization", "fp8", "--error-budget").stdout
        for word in ("KL(base || candidate)", "Error budget", "weights and activations"):
            self.assertIn(word, text)
        other = self.copy_model("other")
        (other / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        same = json.loads(run(*flags, "--against", other, "--json").stdout)
        self.assertEqual((same["kl_max"], same["same_top"]), (0, 1))
        # One window says nothing of an error.
        flags[-1] = 1
        one = json.loads(run(*flags, "--json").stdout)
        self.assertIsNone(one["nll_standard_error"])
        self.assertIn("± -", run(*flags).stdout)
        table = run("evaluate", self.model, "--kv-table", "--text", self.text, "--contexts", "512", "--kv-dtypes", "int8")
        self.assertIn("± -", table.stdout)

    def test_a_task_killed_at_any_moment_goes_on(self):
        flags = ["evaluate", self.model, "--quantization", "fp8", "--task", "arc_easy", "--data", self.data, "--json"]
        whole, resumed, log = (self.folder / name for name in ("whole.jsonl", "resumed.jsonl", "log.jsonl"))
        result = json.loads(run(*flags, "--items-out", whole).stdout)
        self.assertEqual(result["items"], 400)
        command = [OCTAVO, *map(str, flags), "--resume", str(log), "--items-out", str(resumed)]
        for attempt in range(12):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=0.05 + 0.05 * attempt)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.assertTrue(process.returncode != 0 or resumed.exists())
            if resumed.exists():  # whole, also where the end came just before the kill
                self.assertEqual(resumed.read_bytes(), whole.read_bytes())
        again = json.loads(run(*command[1:]).stdout)
        self.assertEqual(again["metrics"], result["metrics"])
        self.assertEqual(resumed.read_bytes(), whole.read_bytes())
        refused = run(*command[1:], "--limit", "5", code=1)
        self.assertIn("--resume", refused.stderr)

    def test_flags_of_another_mode_are_refused_by_name(self):
        task = ["--task", "arc_easy", "--data", self.data]
        text = ["--text", self.text, "--context", "64"]
        for flags, named in ((["--shots", "2"], "--shots"), (["--limit", "3"], "--limit"), (["--data", self.data], "--data"),
                             (["--kv-dtypes", "int8"], "--kv-dtypes"), (["--items-out", "f"], "--items-out"),
                             (["--out", "f"], "--out"), (["--diff", "f"], "--diff"), (["--tries", "2"], "--tries"),
                             (["--windows", "-1"], "--windows")):
            self.assertIn(named, run("evaluate", self.model, *text, *flags, code=1).stderr)
        for flags, named in (([*task, "--shots-from", self.data], "--shots-from"), ([*task, "--text", self.text], "--text"),
                             ([*task, "--out", "f"], "--out"), ([*task, "--raw"], "--raw"),
                             ([*task, "--max-tokens", "5"], "--max-tokens"), ([*task, "--contexts", "64"], "--contexts"),
                             (["--boundary", "--tries", "2"], "--tries"), (["--boundary", "--text", self.text], "--text"),
                             (["--kv-table", "--text", self.text, "--kv-cache-dtype", "int8"], "--kv-cache-dtype"),
                             (["--needle", "--text", self.text, "--context", "64"], "--context")):
            self.assertIn(f"where:    {named}\n", run("evaluate", self.model, *flags, code=1).stderr)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["copy", "items.jsonl", "text.txt"])

    def test_a_full_disk_is_an_error_and_leaves_no_half_file(self):
        task = ["evaluate", self.model, "--task", "arc_easy", "--data", self.data, "--limit", "40"]
        out, log = self.folder / "out.jsonl", self.folder / "log.jsonl"
        whole = self.folder / "whole.jsonl"
        run(*task, "--items-out", whole)
        for size in (0, 100, 1000, 5000):
            self.assertIn("out.jsonl", run(*task, "--items-out", out, code=1, preexec_fn=full_disk(size)).stderr)
            self.assertFalse(out.exists())
            self.assertIn("log.jsonl", run(*task, "--resume", log, code=1, preexec_fn=full_disk(size)).stderr)
        # What the log has of the run is gone on with.
        self.assertGreater(json.loads(run(*task, "--resume", log, "--items-out", out, "--json").stdout)["items"], 0)
        self.assertEqual(out.read_bytes(), whole.read_bytes())
        answers = ["evaluate", self.model, "--boundary", "--max-tokens", "2", "--out", self.folder / "answers.jsonl"]
        run(*answers, code=1, preexec_fn=full_disk(300))
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith("answers")], [])

    def test_every_mode_goes_on_where_it_was_killed(self):
        text = ["--text", self.text]
        for name, flags in (("perplexity", [*text, "--context", "64", "--windows", "5"]),
                            ("budget", [*text, "--context", "64", "--windows", "2", "--quantization", "bf16",
                                        "--against-quantization", "fp8", "--error-budget"]),
                            ("table", ["--kv-table", *text, "--contexts", "64,128", "--windows", "2"]),
                            ("needle", ["--needle", *text, "--lengths", "128,256", "--depths", "0,100", "--kv-dtypes",
                                        "bf16,int8"]),
                            ("answers", ["--boundary", "--max-tokens", "3"])):
            command = ["evaluate", self.model, *flags, "--json"]
            without_seconds = lambda text: re.sub(r'"((base_|candidate_)?seconds|tokens_per_second)": [^,\n}]*', "", text)
            whole = run(*command).stdout
            log = self.folder / f"{name}.jsonl"
            self.assertEqual(without_seconds(run(*command, "--resume", log).stdout), without_seconds(whole), name)
            lines = log.read_bytes().splitlines(True)
            self.assertGreater(len(lines), 4, name)
            for cut in (0, 1, len(lines) // 2, len(lines) - 1):  # whole lines, and half of the next
                log.write_bytes(b"".join(lines[:cut]) + lines[cut][:len(lines[cut]) // 2])
                resumed = run(*command, "--resume", log).stdout
                self.assertEqual(without_seconds(resumed), without_seconds(whole), (name, cut))
                self.assertEqual(len(log.read_bytes().splitlines()), len(lines), (name, cut))
            # What is there is not measured again: a mark comes back.
            marked = re.sub(rb'("nll":|"logprob":|"kl_max":|"largest":)[^,}]*', rb"\g<1>0.125", log.read_bytes())
            marked = marked.replace(b'"finish_reason":"length"', b'"finish_reason":"marked"')
            log.write_bytes(marked)
            self.assertRegex(run(*command, "--resume", log).stdout, r"0\.125|marked", name)
            # Another model, plan or setting is another run.
            other = ["--k-dtype", "int8"] if name == "budget" else ["--quantization", "int8"]
            self.assertIn("another run", run(*command, *other, "--resume", log, code=1).stderr, name)

    def test_humaneval_writes_completions(self):
        data, out = self.folder / "humaneval.jsonl", self.folder / "completions.jsonl"
        prompts = {f"HumanEval/{i}": f"def f{i}(x):\n" for i in range(3)}
        data.write_text("".join(json.dumps({"task_id": name, "prompt": text}) + "\n" for name, text in prompts.items()))
        flags = ["evaluate", self.model, "--task", "humaneval", "--data", data, "--max-tokens", "8"]
        result = json.loads(run(*flags, "--out", out, "--json").stdout)
        self.assertEqual((result["items"], result["metrics"], result["errors"]), (3, {}, 0))
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([sorted(line) for line in lines], [["completion", "task_id"]] * 3)
        self.assertEqual([line["task_id"] for line in lines], list(prompts))
        # An answer is what the model says to the prompt alone.
        alone = self.folder / "alone.jsonl"
        (self.folder / "prompt.jsonl").write_text(json.dumps({"prompt": prompts["HumanEval/1"]}) + "\n")
        run("evaluate", self.model, "--answers", self.folder / "prompt.jsonl", "--max-tokens", "8", "--out", alone)
        said = json.loads(alone.read_text().splitlines()[1])["text"]
        stops = [said.find(stop) for stop in ("\nclass", "\ndef", "\n#", "\nif", "\nprint") if stop in said]
        self.assertEqual(lines[1]["completion"], said[:min(stops)] if stops else said)
        self.assertIn("max_tokens", run(*flags[:-1], "512", code=1).stderr)

    def test_solved_examples(self):
        flags = ["evaluate", self.model, "--task", "arc_easy", "--data", self.data, "--limit", "5"]
        three = self.folder / "three.jsonl"
        three.write_text("".join(self.data.read_text().splitlines(True)[:3]))
        refused = run(*flags, "--shots", "5", "--shots-from", three, code=1).stderr
        for word in ("--shots", "3 in", "three.jsonl"):
            self.assertIn(word, refused)
        with_shots, without = self.folder / "with.jsonl", self.folder / "without.jsonl"
        result = json.loads(run(*flags, "--shots", "3", "--shots-from", three, "--items-out", with_shots, "--json").stdout)
        self.assertEqual(result["shots"], 3)
        run(*flags, "--items-out", without)
        self.assertNotEqual(with_shots.read_bytes(), without.read_bytes())

    def test_errors_name_the_flag(self):
        shallow = self.copy_model("shallow")
        self.change_config(shallow, num_hidden_layers=2)
        for flags, word in ((["--text", self.folder / "none"], "--text"), (["--task", "arc_easy"], "--data"),
                            (["--kv-table", "--text", self.text, "--contexts", "0"], "--contexts"),
                            (["--kv-table", "--text", self.text, "--contexts", "64,4096"], "--contexts"), (["--task", "arc_hard"], "arc_easy"), ([], "--text"),
                            (["--needle", "--kv-table", "--text", self.text], "--kv-table"),
                            (["--needle", "--text", self.text, "--lengths", "12k"], "--lengths"),
                            (["--error-budget", "--text", self.text], "--against"),
                            (["--error-budget", "--text", self.text, "--context", "64", "--against", shallow],
                             "leave --error-budget out"),
                            (["--kv-table", "--text", self.text, "--kv-dtypes", "fp9"], "fp9"),
                            (["--task", "arc_easy", "--data", self.data, "--shots", "2"], "--shots-from")):
            self.assertIn(word, run("evaluate", self.model, *flags, code=1).stderr)

    def test_answers_and_their_diff(self):
        out = self.folder / "answers.jsonl"
        run("evaluate", self.model, "--quantization", "bf16", "--boundary", "--max-tokens", "4", "--out", out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([line["id"] for line in lines if "error" in line], ["empty", "longer than the context"])
        flags = ["evaluate", self.model, "--boundary", "--max-tokens", "4", "--diff", out]
        self.assertTrue(all(row["same"] for row in json.loads(run(*flags, "--quantization", "bf16", "--json").stdout)))
        self.assertIn("answers are the same", run(*flags, "--quantization", "fp8").stdout)

    def test_needle_and_kv_table(self):
        out = json.loads(run("evaluate", self.model, "--needle", "--text", self.text, "--lengths", "128,256", "--depths",
                             "0,100", "--kv-dtypes", "bf16,fp8_e4m3", "--json").stdout)
        self.assertEqual([(grid["kv"], len(grid["cells"])) for grid in out["grids"]], [("bf16", 4), ("fp8_e4m3", 4)])
        table = json.loads(run("evaluate", self.model, "--kv-table", "--text", self.text, "--contexts", "64", "--windows",
                               "2", "--json").stdout)
        self.assertEqual(len(table["rows"]), 10)
        self.assertTrue(all(row["kl_mean"] > 0 and row["bytes_per_token"] < table["bf16_bytes_per_token"]
                            for row in table["rows"]))
        # Without --kv-dtypes: the plan's own cache, as flags spell it.
        own = json.loads(run("evaluate", self.model, "--needle", "--text", self.text, "--lengths", "128", "--depths", "0",
                             "--quantization", "fp8", "--kv-cache-dtype", "int8:wide4:skip0", "--json").stdout)
        self.assertEqual(own["grids"][0]["kv"], "int8:wide4 (2), bf16 (1)")

    def test_calibrated_kv_cache(self):
        out = self.folder / "calibrated"
        command = ["quantize", self.model, out, "--scheme", "bf16", "--calibrate", self.text, "--samples", "4", "--length",
                   "64"]
        self.assertIn("--kv", run(*command, "--refit-temperature", code=1).stderr)
        self.assertIn("'chanel'", run(*command, "--kv", "int8:chanel", code=1).stderr)
        summary = json.loads(run(*command, "--kv", "int8:channel", "--refit-temperature", "--json").stdout)
        self.assertEqual(len(summary["kv"]["temperatures"]), 3)
        plan = json.loads(run("inspect", out, "--json").stdout)
        self.assertEqual({layer["k_dtype"] for layer in plan["kv"]}, {"int8:channel:temperature"})
        # A layer that is left wide stays so beside FP8 activations.
        command[2:5] = [self.folder / "skipped", "--scheme", "fp8"]
        run(*command, "--rounding", "nearest", "--kv", "fp8_e4m3:tensor:skip0")
        plan = json.loads(run("inspect", self.folder / "skipped", "--json").stdout)
        self.assertEqual([layer["v_dtype"] for layer in plan["kv"]], ["bf16"] + 2 * ["fp8_e4m3:tensor"])
        table = json.loads(run("evaluate", out, "--kv-table", "--text", self.text, "--contexts", "64", "--windows", "2",
                               "--json").stdout)
        rows = {row["kv"]: row for row in table["rows"]}
        self.assertEqual(len(rows), 20)
        self.assertGreater(rows["fp8_e4m3:block1024"]["bytes_per_token"], rows["fp8_e4m3:static"]["bytes_per_token"])
        self.assertTrue(all(row["kl_mean"] > 0 for row in table["rows"]))
        # A model without values, and values of another model.
        self.assertIn("--calibrate", run("evaluate", self.model, "--text", self.text, "--kv-cache-dtype",
                                         "int8:static", "--context", "64", code=1).stderr)
        run("evaluate", self.model, "--text", self.text, "--kv-cache-dtype", "int8:static", "--context", "64",
            "--kv-calibration", out / "octavo_kv.json")
        values = json.loads((out / "octavo_kv.json").read_text())
        values["model"]["head_dim"] *= 2
        (out / "octavo_kv.json").write_text(json.dumps(values))
        self.assertIn("another model", run("inspect", out, code=1).stderr)


class Bench(Case):
    def test_keys(self):
        out = json.loads(run("bench", self.model, "--quantization", "fp8", "--prompt", "32", "--generate", "4",
                             "--repeat", "2", "--json").stdout)
        for kind in ("prefill", "decode"):
            for key in ("tokens_per_second", "roofline_share", "spread"):
                self.assertIn(key, out[kind])
            self.assertGreater(out[kind]["tokens_per_second"], 0)

    def test_batch(self):
        short = ("--prompt", "16", "--generate", "4", "--repeat", "1")
        out = json.loads(run("bench", self.model, *short, "--batch", "3", "--json").stdout)["together"]
        self.assertEqual(out["batch"], 3)
        self.assertGreater(out["decode_tokens_per_second"], out["output_tokens_per_second"])
        self.assertGreater(out["output_tokens_per_second"], 0)
        self.assertIn("3 together", run("bench", self.model, *short, "--batch", "3").stdout)
        deep = json.loads(run("bench", self.model, *short, "--batch", "2", "--depth", "400", "--json").stdout)
        self.assertGreater(deep["together"]["step_byte_seconds"], 0)
        self.assertIn("--depth", run("bench", self.model, *short, "--batch", "2", "--depth", "500", code=1).stderr)
        self.assertIn("--batch", run("bench", self.model, *short, "--batch", "2000", code=1).stderr)
        self.assertIn("--depth, --prompt and --generate", run("bench", self.model, "--prompt", "4", "--generate", "100000",
                                                     "--batch", "2", code=1).stderr)

    def test_flags_of_a_model_beside_a_url_are_refused_by_name(self):
        for flag, value in (("--kv-calibration", "f.json"), ("--quantization", "fp8"), ("--isa", "avx2"), ("--plan", "f")):
            error = run("bench", "serve", "http://127.0.0.1:9", flag, value, code=1).stderr
            self.assertIn(f"where:    {flag}\n", error)
        error = run("bench", "serve", "http://127.0.0.1:9", "--dataset", "f", "--shared-prefix", "4", code=1).stderr
        self.assertIn("where:    --shared-prefix\n", error)

    def test_bench_serve_is_a_command_of_its_own_below_bench(self):
        self.assertIn("MODEL", run("bench", code=2).stderr)
        self.assertIn("URL|MODEL", run("bench", "serve", code=2).stderr)
        self.assertIn("--request-rate", run("bench", "serve", "--help").stdout)
        self.assertNotIn("--request-rate", run("bench", "--help").stdout)


class Experts(Case):
    def setUp(self):
        super().setUp()
        self.model = self.copy_model(source=DATA / "tiny" / "qwen3_moe")
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 26) for i in range(4000)))

    def test_shown_quantized_and_run(self):
        self.assertIn("8 experts of 48 in 2 layers, 3 for each token", run("inspect", self.model).stdout)
        facts = json.loads(run("inspect", self.model, "--json").stdout)
        self.assertEqual(facts["experts"], {"count": 8, "per_token": 3, "intermediate_size": 48, "layers": 2})
        router = next(line for line in facts["plan"] if line["role"] == "router")
        self.assertEqual((router["weight"], router["activation"]), ("float32", "float32"))
        flags = ["--scheme", "fp8-static", "--calibrate", self.text, "--samples", "4", "--length", "64"]
        self.assertIn("calibration on 256 tokens", run("quantize", self.model, self.folder / "x", *flags, "--dry-run").stdout)
        shown = run("quantize", self.model, self.folder / "out", *flags).stdout
        self.assertRegex(shown, r"tokens by expert: \d+ to \d+, half of them \d+ or more; of 16 experts \d+ saw none")
        out = json.loads(run("quantize", self.model, self.folder / "again", *flags, "--json").stdout)
        tokens = out["calibration"]["expert_tokens"]
        self.assertEqual([sum(layer) for layer in tokens], [3 * 256, 0, 3 * 256])
        config = json.loads((self.folder / "out" / "config.json").read_text())["quantization_config"]
        self.assertIn("model.layers.0.mlp.gate", config.get("modules_to_not_convert", config.get("ignore")))
        run("run", self.folder / "out", "--prompt", "x", "--raw", "--max-tokens", "4")
        for extra, word in ((["--smooth", "0.5"], "--smooth"), (["--rounding", "awq"], "--rounding awq")):
            error = run("quantize", self.model, self.folder / "no", "--scheme", "int8", "--calibrate", self.text, *extra,
                        code=1).stderr
            self.assertIn("mixture of experts", error)
            self.assertIn(f"where:    {word}", error)

    def test_a_plan_is_found_and_written(self):
        result, plan = self.folder / "s.json", self.folder / "plan.json"
        run("sensitivity", self.model, "--text", self.text, "--tokens", "128", "--context", "64", "--scheme", "fp8,int4",
            "--out", result)
        entries = json.loads(result.read_text())["entries"]
        self.assertEqual(len(entries), 3 * (7 * 2 + 2) + 2)  # experts of a layer are lowered together
        run("sensitivity", self.model, "--from", result, "--budget", "7bpw", "--plan-out", plan)
        linears = json.loads(plan.read_text())["linears"]
        self.assertEqual(linears["model.layers.0.mlp.gate"], "float32")
        self.assertEqual({linears[f"model.layers.0.mlp.experts.{e}.up_proj"] for e in range(8)},
                         {linears["model.layers.0.mlp.experts.0.up_proj"]})
        run("logits", self.model, "--ids", "9,8,7", "--out", self.folder / "a", "--plan", plan)
        run("quantize", self.model, self.folder / "q", "--plan", plan)
        run("logits", self.folder / "q", "--ids", "9,8,7", "--out", self.folder / "b", "--kv-cache-dtype", "bf16")
        self.assertEqual((self.folder / "a").read_bytes(), (self.folder / "b").read_bytes())


if __name__ == "__main__":
    OCTAVO, DATA = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
