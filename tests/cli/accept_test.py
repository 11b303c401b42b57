#!/usr/bin/env python3
"""octavo accept: exit codes, gates that cannot be computed, resuming, and a page whose every figure stands in the JSON.

    python3 tests/cli/accept_test.py OCTAVO TEST_DATA
"""
import html.parser
import json
import pathlib
import re
import struct
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import Case, byte_tokenizer, full_disk, run

LOOSE = {"memory_ratio_max": 2, "ttft_ratio_max": 1e9, "tpot_ratio_max": 1e9, "throughput_ratio_min": 0,
         "perplexity_change_max": 10, "kl_mean_max": 10, "task_drop_max": 1, "task_items_min": 10,
         "needle_lost_max": "off"}
PART_FLAGS = {"text": ("context", "windows", "needle_lengths", "needle_depths"), "task": ("limit",),
              "repeat": ("prompt", "generate", "batch")}
VOID = {"meta", "br"}
SHAPES = {"rect", "line", "circle"}
FACTORS = {"": 1, "%": 100, "×": 1, "B": 1, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "ms": 1e3, "s": 1, "tok/s": 1}


class Page(html.parser.HTMLParser):
    """Checks nesting; collects (pointer, text) of every element with data-json, and the text outside of them."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.figures, self.outside, self.ids, self.links = [], [], [], [], []
        self.tags, self.attributes = set(), []
        self.feed(text)
        self.close()
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        if tag not in VOID:
            self.stack.append((tag, attributes.get("data-json")))

    def handle_startendtag(self, tag, attributes):
        assert tag in SHAPES, tag
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1][0] == tag, (tag, self.stack, self.getpos())
        self.stack.pop()

    def handle_data(self, data):
        pointers = [pointer for _, pointer in self.stack if pointer]
        if pointers:
            self.figures.append((pointers[-1], data))
        elif self.stack and self.stack[-1][0] != "style":
            self.outside.append(data)


def at(document, pointer):
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


class Accept(Case):
    def setUp(self):
        super().setUp()
        self.model = self.copy_model()
        (self.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 26) for i in range(700)))
        self.data = self.folder / "items.jsonl"
        self.data.write_text("".join(
            json.dumps({"query": f"Question: {i}?", "choices": ["one", "two or more"], "gold": i % 2}) + "\n"
            for i in range(60)))
        self.out = self.folder / "out"

    def gates(self, **changes):
        path = self.folder / "gates.json"
        path.write_text(json.dumps(LOOSE | changes))
        return path

    def flags(self, *more, model=None, **options):
        """The command; options by name, `_` for `-`, None: without."""
        all_options = {"gates": self.gates() if "gates" not in options else None, "text": self.text, "context": 64,
                       "windows": 2, "task": f"arc_easy={self.data}", "limit": 40, "needle_lengths": "128,256",
                       "needle_depths": "0,100", "prompt": 16, "generate": 2, "batch": 3, "repeat": 2,
                       "out": self.out} | options
        for part, parts_flags in PART_FLAGS.items():  # a part that does not run refuses its flags
            if not all_options[part]:
                all_options |= dict.fromkeys(parts_flags)
        named = [word for name, value in all_options.items() if value is not None
                 for word in ("--" + name.replace("_", "-"), value)]
        return ["accept", model or self.model, *more, *named]

    def empty(self):
        path = self.folder / "empty.txt"
        path.write_text("")
        return path

    def report(self):
        return json.loads((self.out / "report.json").read_text())

    def nan_model(self):
        model = self.copy_model("broken")
        (model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(320)))
        weights = model / "model.safetensors"
        data = bytearray(weights.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        begin = 8 + size + json.loads(data[8:8 + size])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
        data[begin:begin + 2] = b"\xc0\x7f"
        weights.write_bytes(data)
        return model

    def sensitivity(self, **model):
        config = json.loads((self.model / "config.json").read_text())
        def entry(layer, role, scheme, kl):
            return {"layer": layer, "role": role, "scheme": scheme, "perplexity_change": kl - 0.0001,
                    "perplexity_change_error": 0.0001, "kl": kl, "output_error": 0.02, "bytes": 1, "base_bytes": 2,
                    "class": "free" if kl < 0.001 else "keep wide"}
        entries = [entry(layer, role, "fp8", kl) for layer in range(config["num_hidden_layers"])
                   for role, kl in (("q_proj", 0.0002), ("down_proj", 0.0345 - layer / 1000))]
        entries.append(entry(-1, "lm_head", "fp8", 0.0011))
        entries += [entry(layer, "k_cache", "fp8_e4m3", 0.0001) for layer in range(config["num_hidden_layers"])]
        path = self.folder / "sensitivity.json"
        path.write_text(json.dumps({
            "octavo_sensitivity": 1, "base": "bf16", "tokens": 4096, "context": 64, "base_perplexity": 9, "base_bytes": 3,
            "model": {"architecture": "LlamaForCausalLM", "layers": config["num_hidden_layers"],
                      "hidden_size": config["hidden_size"], "intermediate_size": config["intermediate_size"],
                      "vocabulary": config["vocab_size"]} | model, "entries": entries}))
        return path

    def test_all_gates_hold_and_every_figure_of_the_page_stands_in_the_json(self):
        printed = json.loads(run(*self.flags("--quantization", "fp8", "--sensitivity", self.sensitivity(), "--json")).stdout)
        report = self.report()
        self.assertEqual(printed, report)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), ["model_card.md", "report.html", "report.json"])
        self.assertEqual((report["verdict"]["accepted"], report["verdict"]["held"], report["verdict"]["off"]), (True, 7, 1))
        self.assertEqual(report["settings"]["batch"], 3)
        base, candidate = report["ladder"][0], report["ladder"][-1]
        for key in ("throughput_tokens_per_second", "throughput_spread", "tpot_seconds"):
            self.assertGreaterEqual(base[key], 0)
            self.assertGreaterEqual(candidate[key], 0)
        self.assertEqual(report["measured"]["throughput_ratio"]["value"], candidate["throughput_ratio"])
        self.assertEqual([rung["title"] for rung in report["ladder"]], ["base", "weights", "+ activations", "+ KV cache"])
        self.assertEqual(len(report["error_budget"]), 7)
        self.check_page(report)
        self.check_card(report)

    def check_page(self, report):
        text = (self.out / "report.html").read_text()
        page = Page(text)
        self.assertFalse(page.tags & {"script", "link", "img", "iframe", "object"})
        self.assertNotRegex(text, r"url\(|@import|https?:")
        self.assertTrue({"#" + name for name in page.ids} >= set(page.links))
        self.assertFalse([words for words in page.outside if re.search(r"\d", words)])
        numbers = 0
        for pointer, shown in page.figures:
            value = at(report, pointer)
            if isinstance(value, str):
                self.assertEqual(shown, value, pointer)
                continue
            match = re.fullmatch(r"([+\u2212]?)(\d+(?:\.(\d+))?)(?:\u202f(\S+))?", shown)
            self.assertTrue(match, (pointer, shown))
            number = float(match[2]) * (-1 if match[1] == "\u2212" else 1)
            exact = value * FACTORS[match[4] or ""]
            self.assertLessEqual(abs(exact - number), 0.5000001 * 10 ** -len(match[3] or ""), (pointer, shown, value))
            numbers += 1
        self.assertGreater(numbers, 150)
        for name, value in page.attributes:
            if name == "value":
                self.assertTrue(value == "nan" or float(value) is not None)
        for words in ("Accepted", "all ", "keep wide", "switched off in the gates file"):
            self.assertIn(words, text)
        self.assertEqual(text.count('class="heat'), 3 * report["model"]["layers"] + 1 + 2 * 8)  # and legends

    def check_card(self, report):
        card = (self.out / "model_card.md").read_text()
        self.assertIn("**accepted**, 7 of 7 gates hold", card)
        self.assertIn(f"{100 * report['quality']['perplexity_change']:+.2f} %", card)
        self.assertIn(f"| {report['ladder'][0]['perplexity']:.3f} |", card)
        tables = re.findall(r"(?:^\|.*\|\n)+", card, re.M)
        self.assertEqual(len(tables), 3)
        for table in tables:
            self.assertEqual(len({line.replace("\\|", "").count("|") for line in table.splitlines()}), 1, table)

    def test_a_plan_file_is_a_candidate(self):
        config = json.loads((self.model / "config.json").read_text())
        layers = config["num_hidden_layers"]
        roles = [f"self_attn.{r}_proj" for r in "qkvo"] + [f"mlp.{r}_proj" for r in ("gate", "up", "down")]
        linears = {f"model.layers.{i}.{role}": "fp8" if i else "bf16" for i in range(layers) for role in roles}
        plan = {"octavo_plan": 1, "base": "bf16", "linears": linears | {"lm_head": "bf16"},
                "kv": [{"k": "bf16", "v": "fp8_e4m3"}] * layers,
                "model": {"architecture": "LlamaForCausalLM", "layers": layers, "hidden_size": config["hidden_size"],
                          "intermediate_size": config["intermediate_size"], "vocabulary": config["vocab_size"]}}
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        run(*self.flags("--plan", path))
        report = self.report()
        self.assertEqual([row["part"] for row in report["error_budget"]],
                         ["weights", "activations", "weights and activations", "V", "kernels", "all"])
        self.assertIn(f"bf16 ({len(roles) + 1})", report["candidate"]["plan"]["weights"])
        path.write_text(json.dumps(plan | {"model": plan["model"] | {"layers": 99}}))
        self.assertIn("99", run(*self.flags("--plan", path), code=1).stderr)

    def test_a_gate_that_fails_is_exit_code_3(self):
        result = run(*self.flags("--quantization", "fp8", gates=self.gates(kl_mean_max=0)), code=3)
        self.assertRegex(result.stdout, r"kl_mean_max .* FAILS")
        self.assertIn("NOT ACCEPTED: 6 of 7", result.stdout)
        failing = [gate["gate"] for gate in self.report()["gates"] if gate["status"] == "fails"]
        self.assertEqual(failing, ["kl_mean_max"])
        page = (self.out / "report.html").read_text()
        self.assertIn('class="verdict fails"', page)
        self.assertEqual(page.count('<tr class="fails">'), 1)

    def test_what_cannot_be_computed_does_not_pass(self):
        result = run("accept", self.model, "--quantization", "fp8", "--repeat", "0", "--out", self.out, code=3)
        status = {gate["gate"]: (gate["status"], gate.get("reason", "")) for gate in self.report()["gates"]}
        for gate, flag in (("perplexity_change_max", "--text"), ("kl_mean_max", "--text"), ("needle_lost_max", "--text"),
                           ("task_drop_max", "--task"), ("ttft_ratio_max", "--repeat"), ("throughput_ratio_min", "--repeat")):
            self.assertEqual(status[gate][0], "not computed")
            self.assertIn(flag, status[gate][1])
            self.assertIn(flag, result.stdout)
        self.assertEqual(status["memory_ratio_max"][0], "holds")
        Page((self.out / "report.html").read_text())
        # A model that finds no needle cannot lose one.
        run(*self.flags("--quantization", "fp8", gates=self.gates(needle_lost_max=0)), code=3)
        needle = self.report()["gates"][-1]
        self.assertEqual((needle["gate"], needle["status"]), ("needle_lost_max", "not computed"))
        self.assertIn("--needle-lengths", needle["reason"])

    def test_a_task_of_few_items_is_not_judged(self):
        run(*self.flags("--quantization", "fp8", gates=self.gates(task_items_min=41)), code=3)
        gate = next(gate for gate in self.report()["gates"] if gate["gate"] == "task_drop_max")
        self.assertEqual((gate["status"], gate["subject"]), ("not computed", "arc_easy"))
        self.assertIn("40 items", gate["reason"])
        self.assertIn("task_items_min", (self.out / "report.html").read_text())

    def test_what_else_lies_in_the_folder_stays(self):
        precious = self.out / "unfinished" / "precious"
        precious.parent.mkdir(parents=True)
        precious.write_text("x")
        run("accept", self.model, "--quantization", "fp8", "--repeat", "0", "--out", self.out, code=3)
        self.assertEqual([path.name for path in precious.parent.iterdir()], ["precious"])

    def test_a_full_disk_is_an_error_and_leaves_no_half_file(self):
        flags = self.flags("--quantization", "fp8", repeat=0)
        for size in (0, 500, 2000, 6000, 12000):  # of the log, its first section, the items, the report
            result = run(*flags, code=1, preexec_fn=full_disk(size))
            self.assertIn(str(self.out), result.stderr)
            for name in ("report.html", "report.json", "model_card.md"):
                self.assertFalse((self.out / name).exists() and not (self.out / name).read_text().endswith("\n"), name)
            self.assertFalse((self.out / "report.json").exists(), size)
        run(*flags, code=3)
        self.assertTrue((self.out / "report.json").exists())

    def test_another_kv_cache_is_another_run(self):
        flags = {"repeat": 0, "task": None, "text": None, "needle_lengths": None}
        process = subprocess.Popen([cli_test.OCTAVO, *map(str, self.flags("--kv-cache-dtype", "fp8_e4m3", **flags))],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=full_disk(1100))  # room for the log's first line and no more
        process.wait()
        self.assertTrue((self.out / "unfinished" / "sections.jsonl").exists())
        for cache in ("fp8_e4m3:wide4", "fp8_e4m3:skip0", "int8"):
            refused = run(*self.flags("--kv-cache-dtype", cache, **flags), code=1).stderr
            self.assertIn("candidate_plan", refused)
            self.assertIn("--out", refused)

    def test_a_candidate_of_nan_fails_its_gates_and_the_report_is_written(self):
        run(*self.flags(self.nan_model(), "--quantization", "bf16", gates=self.gates(needle_lost_max=0)), code=3)
        gates = {gate["gate"]: gate for gate in self.report()["gates"]}
        for name in ("perplexity_change_max", "kl_mean_max", "task_drop_max", "needle_lost_max"):
            self.assertEqual(gates[name]["status"], "not computed", name)
            self.assertIn("not finite", gates[name]["reason"])
        Page((self.out / "report.html").read_text())

    def test_errors_name_what_to_change_and_write_nothing(self):
        unknown = self.gates(perplexity=3)
        wrong = run(*self.flags("--quantization", "fp8", gates=unknown), code=1).stderr
        for word in ('"perplexity"', "perplexity_change_max", "task_standard_errors"):
            self.assertIn(word, wrong)
        for limit in ("4", None, -1, [1]):
            self.assertIn("kl_mean_max", run(*self.flags("--quantization", "fp8", gates=self.gates(kl_mean_max=limit)),
                                             code=1).stderr)
        for options, word in (({"task": "arc_hard=x"}, "arc_easy"), ({"needle_lengths": 9000}, "--needle-lengths"),
                              ({"repeat": -1}, "--repeat"), ({"context": 9999}, "context"),
                              ({"sensitivity": self.sensitivity(hidden_size=7)}, "hidden_size"),
                              ({"sensitivity": self.data}, "items.jsonl"), ({"prompt": 600}, "--prompt"),
                              ({"prompt": 2**62, "generate": 2**62}, "--prompt"), ({"batch": 0}, "--batch"),
                              ({"needle_depths": 101}, "--needle-depths"), ({"needle_tries": 0}, "--needle-tries"),
                              ({"windows": -1}, "--windows"), ({"text": self.folder / "none"}, "--text"),
                              ({"text": self.empty()}, "shorter"), ({"text": self.folder / "none"}, "none")):
            self.assertIn(word, run(*self.flags("--quantization", "fp8", **options), code=1).stderr)
        self.assertIn("--quantization", run(*self.flags(), code=1).stderr)
        run("accept", code=2)
        run(*self.flags("--no-such-flag"), code=2)
        self.assertFalse(self.out.exists())

    def test_a_run_killed_at_any_moment_goes_on_and_two_do_not_share_a_folder(self):
        flags = self.flags("--quantization", "fp8")
        command = [cli_test.OCTAVO, *map(str, flags)]
        sections = self.out / "unfinished" / "sections.jsonl"
        for attempt in range(8):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if attempt == 0:  # let it begin, then try to begin beside it
                while not sections.exists() and process.poll() is None:
                    time.sleep(0.005)
                process.send_signal(19)  # SIGSTOP
                self.assertIn("another run", run(*flags, code=1).stderr)
            else:
                try:
                    process.wait(timeout=0.05 * attempt)
                except subprocess.TimeoutExpired:
                    pass
            process.kill()
            process.wait()
        if sections.exists():
            refused = run(*self.flags("--quantization", "fp8", windows=3), code=1).stderr
            self.assertIn("--out", refused)
        run(*flags)
        resumed = self.report()
        run(*flags)
        for key in ("quality", "error_budget", "tasks", "needle"):
            self.assertEqual(self.report()[key], resumed[key], key)
        self.assertFalse((self.out / "unfinished").exists())


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    cli_test.OCTAVO, cli_test.DATA = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
