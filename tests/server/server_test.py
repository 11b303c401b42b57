#!/usr/bin/env python3
"""`octavo serve` as clients see it: the binary over real sockets, with a model whose answers are written by this test.

    python3 tests/server/server_test.py OCTAVO

The "script" model: hidden = vocabulary, embedding = identity, o_proj and down_proj zero. What the head says of a token is
then a function of the last token alone, so every answer is known beforehand.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

OCTAVO = None
SIZE = 512
CONTEXT = 512
BOS, END, ABC, DEF, HI = 256, 257, 258, 259, 260
PEPPER = "\N{HOT PEPPER}".encode()


def script():
    """token -> the one that follows."""
    follow = {token: END for token in range(SIZE)}
    for i in range(26):
        follow[ord("a") + i] = ord("a") + (i + 1) % 26  # an endless alphabet
    for digit in range(9):
        follow[ord("0") + digit] = ord("0") + digit + 1  # ends after 9
    follow.update({ABC: DEF, DEF: ord("G"), ord("G"): HI, HI: ord("J"), ord("J"): ord("K")})
    follow[ord("!")] = PEPPER[0]  # one byte per token
    follow.update({PEPPER[i]: PEPPER[i + 1] for i in range(3)})
    follow[ord("?")] = 0xC3  # half a character, then the end
    follow[ord("\n")] = ord("0")  # the end of the template
    return follow


def byte_pieces():
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    pieces, extra = {}, 256
    for byte in range(256):
        if byte in shown:
            pieces[byte] = chr(byte)
        else:
            pieces[byte] = chr(extra)
            extra += 1
    return pieces


def write_model(folder, tensors=None, **config):
    """A model folder of these tensors {name: (shape, BF16 bytes)}; without any: the script model."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": SIZE, "vocab_size": SIZE,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": 64, "rms_norm_eps": 1e-6, "max_position_embeddings": CONTEXT, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": BOS,
        "eos_token_id": END, **config}))
    vocab = {piece: byte for byte, piece in byte_pieces().items()}
    vocab.update({"ABC": ABC, "DEF": DEF, "HI": HI})
    vocab.update({f"unused{i}": i for i in range(HI + 1, SIZE)})
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, text in ((BOS, "<bos>"), (END, "<end>"))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "decoder": level,
        "post_processor": {"type": "TemplateProcessing", "pair": [],
                           "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}}},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<bos>", "eos_token": "<end>",
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}))
    write_tensors(folder / "model.safetensors", tensors or script_tensors())


def script_tensors():
    one = struct.pack("<H", 0x3F80)  # BF16

    def matrix(rows, cols, ones=()):
        data = bytearray(2 * rows * cols)
        for row, col in ones:
            data[2 * (row * cols + col):2 * (row * cols + col) + 2] = one
        return [rows, cols], bytes(data)

    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": matrix(SIZE, SIZE, [(i, i) for i in range(SIZE)]),
               "lm_head.weight": matrix(SIZE, SIZE, [(after, last) for last, after in script().items()]),
               "model.norm.weight": ([SIZE], one * SIZE)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[layer + name + ".weight"] = ([SIZE], one * SIZE)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        ones = [(i, i) for i in range(SIZE)] if name == "v_proj" else ()
        tensors[layer + f"self_attn.{name}.weight"] = matrix(SIZE, SIZE, ones)
    for name, shape in (("gate_proj", (64, SIZE)), ("up_proj", (64, SIZE)), ("down_proj", (SIZE, 64))):
        tensors[layer + f"mlp.{name}.weight"] = matrix(*shape)
    return tensors


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


class Server:
    def __init__(self, model, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([OCTAVO, "serve", str(model), "--port", "0", *flags], stderr=self.log, stdout=self.log)
        self.port = None
        for _ in range(600):
            found = re.search(r"Listening on http://127\.0\.0\.1:(\d+)", self.text())
            if found:
                self.port = int(found[1])
                break
            if self.process.poll() is not None:
                raise AssertionError(self.text())
            time.sleep(0.05)
        for _ in range(600):
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:  # it ends where the model cannot be loaded
                self.process.wait(10)
                break
            time.sleep(0.05)
        raise AssertionError("never ready: " + self.text())

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return reply.status, reply.read().decode(), dict(reply.getheaders())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, **body):
        status, text, _ = self.request("POST", path, body)
        return status, json.loads(text)

    def stream(self, path, **body):
        """Payloads of the events, the last one "[DONE]"."""
        status, text, headers = self.request("POST", path, {"stream": True, **body})
        if status != 200:
            raise AssertionError(text)
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        return [event if event == "[DONE]" else json.loads(event) for event in events]

    def open_stream(self, **body):
        """A raw socket that asked for a stream."""
        data = json.dumps({"stream": True, **body}).encode()
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                    + str(len(data)).encode() + b"\r\n\r\n" + data)
        return raw

    def metric(self, name):
        for line in self.get("/metrics")[1].split("\n"):
            if line.startswith(name) and not line.startswith("#"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError("no metric " + name)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        self.log.close()
        return self.process.returncode


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="octavo-server-"))
        write_model(cls.folder / "script")
        cls.server = Server(cls.folder / "script", "--memory-limit", "1GB", "--max-model-len", "256")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, code

    def complete(self, prompt, **fields):
        status, reply = self.server.post("/v1/completions", prompt=prompt, temperature=0, **fields)
        self.assertEqual(status, 200, reply)
        return reply

    def alive(self):
        self.assertEqual(self.complete("a", max_tokens=3)["choices"][0]["text"], "bcd")
        self.assertIsNone(self.server.process.poll())

    def both_ways(self, prompt, **fields):
        """Text and finish_reason of an answer, equal in one piece and as a stream."""
        choice = self.complete(prompt, **fields)["choices"][0]
        events = self.server.stream("/v1/completions", prompt=prompt, temperature=0, **fields)
        self.assertEqual(events.pop(), "[DONE]")
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), choice["text"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], choice["finish_reason"])
        return choice["text"], choice["finish_reason"]

    def test_answers_and_their_ends(self):
        self.assertEqual(self.both_ways("a", max_tokens=5), ("bcdef", "length"))
        self.assertEqual(self.both_ways("5", max_tokens=50), ("6789", "stop"))
        self.assertEqual(self.both_ways("9", max_tokens=50), ("", "stop"))
        self.assertEqual(self.both_ways("9", max_tokens=3, min_tokens=3)[1], "length")

    def test_characters_split_over_tokens(self):
        self.assertEqual(self.both_ways("!", max_tokens=50), (PEPPER.decode(), "stop"))
        self.assertEqual(self.both_ways("!", max_tokens=3), ("\ufffd", "length"))
        self.assertEqual(self.both_ways("?", max_tokens=50), ("\ufffd", "stop"))
        self.assertEqual(self.both_ways(list(PEPPER[:3]), max_tokens=50), ("\ufffd", "stop"))
        reply = self.server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], temperature=0,
                                 logprobs=True, top_logprobs=2)[1]
        for entry in reply["choices"][0]["logprobs"]["content"]:
            self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
            self.assertGreater(entry["logprob"], -1e-3)
            self.assertEqual(entry["top_logprobs"][0]["logprob"], entry["logprob"])

    def test_stop_strings(self):
        for stop, expected in ((["DEFGHIJ"], ("", "stop")), (["FGH"], ("DE", "stop")), (["GHX"], ("DEFGHIJK", "stop")),
                               (["HI", "FG"], ("DE", "stop")), (["ABC"], ("DEFGHIJK", "stop"))):
            self.assertEqual(self.both_ways([ABC], max_tokens=50, stop=stop), expected, stop)
        self.assertEqual(self.both_ways([ABC], max_tokens=2, stop=["GHX"]), ("DEFG", "length"))
        self.assertEqual(self.both_ways("!", max_tokens=50, stop=[PEPPER.decode()]), ("", "stop"))
        self.assertEqual(self.both_ways([ABC], max_tokens=50, stop_token_ids=[HI]), ("DEFG", "stop"))

    def test_what_stopped_an_answer(self):
        for fields, reason in (({"stop": ["FG"]}, "FG"), ({"stop_token_ids": [HI]}, HI), ({}, None), ({"max_tokens": 1}, None)):
            choice = self.complete([ABC], **{"max_tokens": 50, **fields})["choices"][0]
            self.assertEqual(choice["stop_reason"], reason, fields)
            events = self.server.stream("/v1/completions", prompt=[ABC], temperature=0, **{"max_tokens": 50, **fields})
            self.assertEqual(events[-2]["choices"][0]["stop_reason"], reason, fields)

    def test_chat(self):
        messages = [{"role": "user", "content": "hi"}]
        status, reply = self.server.post("/v1/chat/completions", model="script", messages=messages, temperature=0)
        self.assertEqual(status, 200)
        self.assertEqual(reply["choices"][0]["message"]["content"], "0123456789")
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        tokens = self.server.post("/tokenize", messages=messages)[1]["tokens"]
        self.assertEqual(reply["usage"]["prompt_tokens"], len(tokens))
        self.assertEqual(tokens.count(BOS), 1)
        events = self.server.stream("/v1/chat/completions", messages=messages, temperature=0,
                                    stream_options={"include_usage": True})
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(events[-2]["choices"], [])
        self.assertEqual(events[-2]["usage"]["completion_tokens"], 10)
        self.assertEqual(len({event["id"] for event in events[:-1]}), 1)
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-2])
        self.assertEqual(text, "0123456789")

    def test_echo_with_logprobs(self):
        for max_tokens in (0, 1):
            for prompt in (["ab", "c\u00e9d"], [[97, 98], [99, 0xC3, 0xA9, 100]]):
                reply = self.complete(prompt, max_tokens=max_tokens, echo=True, logprobs=1, seed=1234)
                self.assertEqual([choice["index"] for choice in reply["choices"]], [0, 1])
                self.assertTrue(reply["choices"][0]["text"].startswith("ab"))
                for choice in reply["choices"]:
                    logprobs = choice["logprobs"]
                    self.assertEqual(len({len(logprobs[key]) for key in
                                          ("tokens", "token_logprobs", "top_logprobs", "text_offset")}), 1)
                    self.assertIsNone(logprobs["token_logprobs"][0])
                    self.assertEqual(logprobs["text_offset"], sorted(logprobs["text_offset"]))
                b = reply["choices"][0]["logprobs"]["tokens"].index("b")
                self.assertGreater(reply["choices"][0]["logprobs"]["token_logprobs"][b], -1e-3)
                self.assertEqual(reply["usage"]["completion_tokens"], 2 * max_tokens)
        # Scoring clients cut off one sampled token, so there must be one, even where it is the end of the answer.
        choice = self.complete("9", max_tokens=1, echo=True, logprobs=1)["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("9", "stop"))
        self.assertEqual(choice["logprobs"]["tokens"], ["<bos>", "9", "<end>"])
        self.assertGreater(choice["logprobs"]["token_logprobs"][2], -1e-3)
        self.assertEqual(self.complete("9", max_tokens=1, logprobs=1)["choices"][0]["logprobs"]["tokens"], [])

    def test_limits_of_the_context(self):
        for count, fields, expected in ((300, {}, 400), (256, {}, 400), (257, {}, 400), (255, {}, 200),
                                        (250, {"max_tokens": 100}, 200), (250, {"max_tokens": 2**63}, 200)):
            status, reply = self.server.post("/v1/completions", prompt=[97] * count, temperature=0, **fields)
            self.assertEqual(status, expected, reply)
            if status == 400:
                self.assertEqual(reply["error"]["code"], "context_length_exceeded")
                self.assertIn("maximum context length is 256 tokens", reply["error"]["message"])
            else:
                self.assertEqual(reply["choices"][0]["finish_reason"], "length")
                self.assertEqual(reply["usage"]["completion_tokens"], 256 - count)
        events = self.server.stream("/v1/completions", prompt=[97] * 250, max_tokens=10**9,
                                    stream_options={"include_usage": True})
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(events[-2]["usage"]["completion_tokens"], 6)
        self.alive()

    def test_bad_requests_hurt_nobody(self):
        bad = ['{"prompt":"a","temperature":NaN}', '{"prompt":"a","temperature":-1}', '{"prompt":[-1]}', '{"prompt":[512]}',
               '{"prompt":[5279552648203111001]}', '{"prompt":[]}', '{"prompt":[[]]}', '{"prompt":"a","seed":-1}',
               '{"prompt":"a","logit_bias":{"99999999":1}}', '{"prompt":"a","n":0}', "", "{", "[" * 100000,
               '{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"pattern":"x"}}}}']
        for body in bad:
            status, text, _ = self.server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:100])
            self.assertIsInstance(json.loads(text)["error"]["message"], str)
        try:  # refused from its headers on; a client that goes on sending may find the connection closed
            self.assertEqual(self.server.request("POST", "/v1/completions", "x" * (17 << 20))[0], 413)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.assertEqual(self.server.get("/nothing")[0], 404)
        self.assertEqual(self.server.get("/v1/completions")[0], 405)
        self.assertEqual(self.server.post("/v1/completions", model="other", prompt="a")[0], 404)
        for seed in range(50):
            raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
            raw.sendall(bytes((seed * 7919 + i * i * 31) % 256 for i in range(200)) + b"\r\n\r\n")
            raw.close()
        self.alive()

    def test_samples_are_repeatable(self):
        fields = {"n": 3, "seed": 7, "max_tokens": 8, "ignore_eos": True, "logit_bias": {str(i): 22 for i in range(65, 91)}}
        first = self.server.post("/v1/completions", prompt="a", temperature=1.0, **fields)[1]
        again = self.server.post("/v1/completions", prompt="a", temperature=1.0, **fields)[1]
        texts = [choice["text"] for choice in first["choices"]]
        self.assertEqual(texts, [choice["text"] for choice in again["choices"]])
        self.assertEqual(len(set(texts)), 3)

    def test_constrained_answers(self):
        reply = self.complete("a", max_tokens=20, guided_choice=["yes", "no"])
        self.assertIn(reply["choices"][0]["text"], ("yes", "no"))
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "enum": [1, 22]}},
                  "required": ["a", "b"], "additionalProperties": False}
        for seed in range(5):
            status, reply = self.server.post(
                "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=100, temperature=1.0,
                seed=seed, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
            self.assertEqual(status, 200, reply)
            if reply["choices"][0]["finish_reason"] == "stop":
                self.assertEqual(set(json.loads(reply["choices"][0]["message"]["content"])), {"a", "b"})

    def test_a_format_that_cannot_be_followed_hurts_nobody(self):
        """Two kinds of list that hold one another: each bracket doubles the ways to read what was written."""
        both = [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"type": "null"}]
        bomb = {"$defs": {"X": {"anyOf": both}, "A": {"type": "array", "items": {"$ref": "#/$defs/X"}},
                          "B": {"type": "array", "items": {"$ref": "#/$defs/X"}, "maxItems": 9}}, "$ref": "#/$defs/X"}
        mate = self.server.open_stream(prompt="a", max_tokens=200, temperature=0)
        fields = {"guided_json": bomb, "logit_bias": {str(ord("[")): 100}, "max_tokens": 200}
        status, reply = self.server.post("/v1/completions", prompt="a", temperature=0, **fields)
        self.assertEqual(status, 400, reply)
        self.assertIn("too complex for constrained decoding", reply["error"]["message"])
        events = self.server.stream("/v1/completions", prompt="a", temperature=0, **fields)
        self.assertIn("too complex for constrained decoding", events[-2]["error"]["message"])
        data = b""
        while b"[DONE]" not in data:
            piece = mate.recv(65536)
            self.assertTrue(piece)
            data += piece
        mate.close()
        text = "".join(json.loads(event)["choices"][0]["text"] for event in re.findall(rb"data: (\{.*\})", data))
        self.assertEqual(text, "".join(chr(97 + (1 + i) % 26) for i in range(200)))
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_logprobs_are_the_models_own_and_the_same_streamed(self):
        """Of the raw logits: beside logit_bias -100, top_k 1 and a constraint, and token for token the same in a stream."""
        plain = self.complete([ABC], max_tokens=3, logprobs=3)["choices"][0]["logprobs"]
        for fields in ({"logit_bias": {str(DEF): -100}}, {"top_k": 1, "temperature": 1.0, "seed": 3},
                       {"guided_choice": ["GHI", "xyz"]}, {"logit_bias": {str(DEF): -100}, "top_k": 1, "seed": 1}):
            fields = {"prompt": [ABC], "max_tokens": 3, "logprobs": 3, "temperature": 0, **fields}
            status, reply = self.server.post("/v1/completions", **fields)
            self.assertEqual(status, 200, reply)
            whole = reply["choices"][0]["logprobs"]
            self.assertEqual(whole["top_logprobs"][0].get("DEF"), plain["token_logprobs"][0], "whatever was chosen")
            if "DEF" != whole["tokens"][0]:
                self.assertLess(whole["token_logprobs"][0], plain["token_logprobs"][0])
            streamed = {key: [] for key in whole}
            for event in self.server.stream("/v1/completions", **fields)[:-1]:
                for key, values in (event["choices"][0]["logprobs"] or {}).items():
                    streamed[key] += values
            self.assertEqual(streamed, whole, fields)

    def test_refused_requests_do_not_touch_a_seeded_mate(self):
        ask = {"prompt": "a", "temperature": 1.0, "seed": 11, "max_tokens": 200, "ignore_eos": True,
               "logit_bias": {str(i): 22 for i in range(65, 91)}}
        alone = self.server.post("/v1/completions", **ask)[1]["choices"][0]["text"]
        bad = ['{"prompt":"a","temperature":NaN}', '{"prompt":"a","temperature":1e999}', '{"prompt":[99999]}',
               '{"prompt":"a","logit_bias":{"5":1e30}}', '{"prompt":"a","top_p":-1}', '{"prompt":"a","seed":-1}']
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for _ in range(3):
                mates = [threads.submit(self.server.post, "/v1/completions", **ask) for _ in range(3)]
                for body in bad * 3:
                    self.assertEqual(self.server.request("POST", "/v1/completions", body)[0], 400)
                self.assertEqual({mate.result()[1]["choices"][0]["text"] for mate in mates}, {alone})

    def test_the_command_line_says_the_same(self):
        """`octavo run` and the server give one prompt one answer."""
        def run(*flags):
            result = subprocess.run([OCTAVO, "run", str(self.folder / "script"), "--json", *flags], capture_output=True, text=True,
                                    timeout=120)
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)

        out = run("--prompt", "hi", "--max-tokens", "40")
        reply = self.server.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], temperature=0,
                                 max_tokens=40, return_token_ids=True)[1]
        self.assertEqual((out["text"], out["finish_reason"]),
                         (reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]))
        self.assertEqual(out["tokens"], reply["choices"][0]["token_ids"])
        out = run("--prompt", "ab", "--raw", "--max-tokens", "30")
        choice = self.complete("ab", max_tokens=30)["choices"][0]
        self.assertEqual((out["text"], out["finish_reason"]), (choice["text"], choice["finish_reason"]))
        self.assertGreater(len(out["text"]), 20)

    def test_only_names_of_this_machine(self):
        for host, expected in (("localhost", 200), ("127.0.0.1", 200), ("elsewhere.example", 403)):
            self.assertEqual(self.server.get("/health", Host=host)[0], expected)

    def test_a_client_that_leaves_is_cancelled(self):
        aborted = 'vllm:request_success_total{model_name="script",finished_reason="abort"}'
        before = self.server.metric(aborted)
        streams = [self.server.open_stream(prompt="a", max_tokens=250, ignore_eos=True) for _ in range(20)]
        for i, raw in enumerate(streams):
            if i % 2:
                raw.recv(100)
            raw.close()
        for _ in range(200):
            if self.server.metric("vllm:num_requests_running") + self.server.metric("vllm:num_requests_waiting") == 0:
                break
            time.sleep(0.05)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        self.assertGreater(self.server.metric(aborted), before)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)
        self.alive()

    def test_two_hundred_streams_at_once(self):
        streams = [(start, self.server.open_stream(prompt=chr(97 + start % 26), max_tokens=30, temperature=0)) for start in range(200)]
        for start, raw in streams:
            data = b""
            while b"[DONE]" not in data:
                piece = raw.recv(65536)
                self.assertTrue(piece, data[-200:])
                data += piece
            raw.close()
            events = [json.loads(event) for event in re.findall(rb"data: (\{.*\})", data)]
            text = "".join(event["choices"][0]["text"] for event in events)
            self.assertEqual(text, "".join(chr(97 + (start + 1 + i) % 26) for i in range(30)))
        self.alive()

    def test_a_thousand_open_streams(self):
        count = 1000
        need = count + 200
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < need:
            self.skipTest(f"this system lets a process open {hard} files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
        streams = [self.server.open_stream(prompt=chr(97 + i % 26), max_tokens=20, temperature=0) for i in range(count)]
        self.assertEqual(self.server.get("/health")[0], 200, "others are still served")
        for i, raw in enumerate(streams):
            data = b""
            while b"[DONE]" not in data:
                piece = raw.recv(65536)
                self.assertTrue(piece, data[-200:])
                data += piece
            raw.close()
            text = "".join(json.loads(event)["choices"][0]["text"] for event in re.findall(rb"data: (\{.*\})", data))
            self.assertEqual(text, "".join(chr(97 + (i + 1 + j) % 26) for j in range(20)))
        self.alive()

    def test_metrics_add_up(self):
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count")
        while not self.server.get("/metrics")[1].count("octavo:roofline_share{"):  # measured in an idle moment
            time.sleep(0.1)
        before = [self.server.metric(name) for name in names]
        used = [0, 0]
        for prompt in ("5", "abc", "0"):
            usage = self.complete(prompt, max_tokens=4)["usage"]
            used = [used[0] + usage["prompt_tokens"], used[1] + usage["completion_tokens"]]
        after = [self.server.metric(name) for name in names]
        self.assertEqual([a - b for a, b in zip(after, before)], [*used, 3])
        model = 'model_name="script",step="decode"}'
        self.assertGreater(self.server.metric("octavo:bytes_per_token{" + model), 0)
        self.assertGreater(self.server.metric("octavo:achieved_gigabytes_per_second{" + model), 0)
        self.assertGreater(self.server.metric("octavo:roofline_share{" + model), 0)
        for line in self.server.get("/metrics")[1].strip().split("\n"):
            self.assertRegex(line, r"^(# (HELP|TYPE) \S+ .+|[a-z:_A-Z0-9]+\{[^}]*\} [0-9.e+-]+)$")

    def test_a_hundred_requests_are_counted_by_their_ends(self):
        ends = ("stop", "length", "abort")
        names = [f'vllm:request_success_total{{model_name="script",finished_reason="{end}"}}' for end in ends]
        names += ["octavo:requests_rejected_total", "vllm:time_to_first_token_seconds_count",
                  "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total"]
        prompt_tokens = 10 * self.complete("a", max_tokens=1)["usage"]["prompt_tokens"]  # of the ten that leave
        before = [self.server.metric(name) for name in names]
        for i in range(60):
            choice = self.complete("a", max_tokens=10, stop=["e"])
            self.assertEqual(choice["choices"][0]["finish_reason"], "stop")
            prompt_tokens += choice["usage"]["prompt_tokens"]
        for i in range(20):
            prompt_tokens += self.complete("a", max_tokens=4)["usage"]["prompt_tokens"]
        streams = [self.server.open_stream(prompt="a", max_tokens=250, ignore_eos=True) for _ in range(10)]
        for raw in streams:
            while b"data: " not in raw.recv(4096):
                pass
            raw.close()  # most of them before their end
        for i in range(5):
            prompt_tokens += self.complete("a", max_tokens=4, n=2)["usage"]["prompt_tokens"]
            self.assertEqual(self.server.post("/v1/completions", prompt="a", temperature=-1)[0], 400)
        for _ in range(200):
            after = [self.server.metric(name) for name in names]
            counted = [int(b - a) for a, b in zip(before, after)]
            if counted[1] + counted[2] == 40:
                break
            time.sleep(0.05)
        stop, length, abort, rejected, first_tokens, whole, read = counted
        self.assertEqual((stop, length + abort, rejected), (60, 20 + 2 * 5 + 10, 5), "n = 2 counts twice")
        self.assertEqual((first_tokens, whole), (100, stop + length))
        self.assertEqual(read, prompt_tokens)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_page_and_version(self):
        status, text, headers = self.server.get("/")
        self.assertEqual(status, 200)
        self.assertIn("<!doctype html>", text)
        self.assertNotRegex(text, r"(src|href)=\"https?:")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertEqual(set(json.loads(self.server.get("/version")[1])), {"version"})
        self.assertEqual(self.server.get("/v1/models", Origin="https://elsewhere.example")[0], 403)


def bench(*arguments, code=0):
    result = subprocess.run([OCTAVO, "bench", "serve", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, expected {code}: {arguments}\n{result.stdout}\n{result.stderr}")
    return result


class BenchServe(unittest.TestCase):
    """`octavo bench serve` against the server: what it counts is what the server counted."""

    COUNTED = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_count")

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="octavo-bench-"))
        write_model(cls.folder / "script")
        cls.server = Server(cls.folder / "script", "--memory-limit", "1GB", "--max-model-len", "256")
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        shutil.rmtree(cls.folder)

    def measure(self, *flags):
        before = [self.server.metric(name) for name in self.COUNTED]
        out = json.loads(bench(self.url, "--json", "--num-warmups", 0, *flags).stdout)
        counted = [self.server.metric(name) - b for name, b in zip(self.COUNTED, before)]
        self.assertEqual([out["total_input_tokens"], out["total_output_tokens"], out["completed"]], counted)
        return out

    def test_closed_loop(self):
        out = self.measure("--concurrency", 4, "--num-prompts", 20, "--input-len", 30, "--output-len", 12, "--ignore-eos",
                           "--goodput", "ttft:100000,tpot:100000,e2el:100000", "--detailed")
        self.assertEqual((out["completed"], out["failed"], out["num_prompts"], out["max_concurrency"]), (20, 0, 20, 4))
        self.assertEqual((out["total_input_tokens"], out["total_output_tokens"]), (20 * 30, 20 * 12))
        self.assertEqual((out["backend"], out["model_id"], out["request_rate"]), ("openai", "script", "inf"))
        self.assertLessEqual(out["max_concurrent_requests"], 4)
        for name in ("ttft", "tpot", "itl", "e2el"):
            figures = [out[f"{kind}_{name}_ms"] for kind in ("median", "p90", "p99")]
            self.assertEqual(figures, sorted(figures))
            for kind in ("mean", "median"):
                low, high = out["confidence_95"][f"{kind}_{name}_ms"]
                self.assertLessEqual(low, out[f"{kind}_{name}_ms"] * (1 + 1e-9))
                self.assertGreaterEqual(high, out[f"{kind}_{name}_ms"] * (1 - 1e-9))
        self.assertGreater(out["mean_e2el_ms"], out["mean_ttft_ms"])
        self.assertAlmostEqual(out["output_throughput"], out["total_output_tokens"] / out["duration"], places=6)
        self.assertAlmostEqual(out["total_token_throughput"], 20 * 42 / out["duration"], places=6)
        self.assertAlmostEqual(out["request_throughput"], out["request_goodput"], places=9)
        self.assertEqual((len(out["ttfts"]), len(out["itls"]), set(out["errors"])), (20, 20, {""}))

    def test_open_loop_with_ranges_and_a_shared_prefix(self):
        out = self.measure("--request-rate", 200, "--num-prompts", 30, "--input-len", "5-20", "--output-len", "1-9",
                           "--ignore-eos", "--shared-prefix", 64, "--seed", 3)
        self.assertEqual((out["completed"], out["request_rate"], out["max_concurrency"]), (30, 200, None))
        self.assertTrue(30 * 69 <= out["total_input_tokens"] <= 30 * 84, out["total_input_tokens"])
        self.assertIsNone(out["request_goodput"])
        again = self.measure("--request-rate", "inf", "--num-prompts", 30, "--input-len", "5-20", "--output-len", "1-9",
                             "--ignore-eos", "--shared-prefix", 64, "--seed", 3)
        for key in ("total_input_tokens", "total_output_tokens"):
            self.assertEqual(out[key], again[key], "the same seed, the same requests")

    def test_chats_and_data_sets(self):
        out = self.measure("--endpoint", "/v1/chat/completions", "--num-prompts", 4, "--input-len", 5, "--output-len", 30)
        self.assertEqual((out["backend"], out["total_output_tokens"]), ("openai-chat", 4 * 10))
        lines = [{"prompt": "a", "output_tokens": 5}, {"prompt": [98, 99], "output_tokens": 3}, {"prompt": "5"}]
        (self.folder / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
        out = self.measure("--dataset", self.folder / "set.jsonl", "--concurrency", 1, "--detailed")
        self.assertEqual((out["input_lens"], out["output_lens"]), ([2, 2, 2], [5, 3, 4]))

    def test_failures_are_counted_with_their_reasons(self):
        (self.folder / "bad.jsonl").write_text("\n".join(json.dumps({"prompt": [97] * count}) for count in (5, 300, 400, 6)))
        out = json.loads(bench(self.url, "--json", "--dataset", self.folder / "bad.jsonl", "--output-len", 2).stdout)
        self.assertEqual((out["completed"], out["failed"]), (2, 2))
        self.assertIn("HTTP 400", out["failures"][0]["reason"])
        self.assertIn("maximum context length", out["failures"][0]["reason"])
        result = bench(self.url, "--input-len", 500, "--num-prompts", 3, code=1)
        self.assertIn("none of 3 requests completed", result.stderr)
        self.assertIn("maximum context length", result.stderr)

    def test_a_model_is_served_in_this_process(self):
        result = bench(self.folder / "script", "--quantization", "int8", "--memory-limit", "1GB", "--concurrency", 2,
                       "--num-prompts", 6, "--input-len", 8, "--output-len", 5)
        self.assertIn("served in this process: closed loop, 2 requests at a time", result.stdout)
        self.assertIn("6 requests completed, 0 failed", result.stdout)
        self.assertIn("int8", result.stderr)
        for word in ("TTFT", "TPOT", "ITL", "E2E", "output throughput", "(last chunk - first chunk with text)"):
            self.assertIn(word, result.stdout)

    def test_ctrl_c_ends_the_run_and_its_server(self):
        process = subprocess.Popen([OCTAVO, "bench", "serve", str(self.folder / "script"), "--memory-limit", "1GB", "--json",
                                    "--concurrency", "1", "--num-prompts", "100000", "--input-len", "4", "--output-len", "4"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            address = re.search(r"is ready at http://127\.0\.0\.1:(\d+)", line)
            if address:
                break
        while True:  # until it is measured
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
            connection.request("GET", "/metrics")
            counted = re.search(r"e2e_request_latency_seconds_count\{[^}]*\} (\d+)", connection.getresponse().read().decode())
            connection.close()
            if int(counted[1]) > 3:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        out = json.loads(out)
        self.assertEqual([failure["reason"] for failure in out["failures"]], ["interrupted"], err)
        self.assertEqual(out["completed"] + out["failed"], 100000)

    def test_errors_name_what_to_change(self):
        free = socket.create_server(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        for arguments, word in (([f"http://127.0.0.1:{port}"], "refused"), ([f"http://127.0.0.1:{port}"], "octavo serve"),
                                (["http://127.0.0.1:99999"], "port"), ([self.url, "--model", "other"], "does not exist"),
                                ([self.url, "--quantization", "fp8"], "MODEL"), ([self.url, "--slo", "itl:5"], "--slo"),
                                ([self.url, "--request-rate", "-1"], "--request-rate"),
                                ([self.url, "--input-len", "9-3"], "--input-len"),
                                ([self.url, "--dataset", self.folder / "none"], "none"),
                                ([self.url, "--endpoint", "/v1/nothing"], "--endpoint"),
                                ([self.folder / "no-model"], "no-model")):
            self.assertIn(word, bench(*arguments, code=1).stderr)
        out = json.loads(bench(f"http://127.0.0.1:{port}", "--json", code=1).stdout)
        self.assertIn("does not answer", out["error"]["what"])


class Life(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="octavo-server-"))
        self.addCleanup(shutil.rmtree, self.folder)
        write_model(self.folder / "script")

    def test_sigterm_drains(self):
        server = Server(self.folder / "script", "--memory-limit", "1GB", "--served-model-name", "named", "--api-key", "k")
        self.assertEqual(server.get("/v1/models")[0], 401)
        models = json.loads(server.get("/v1/models", Authorization="Bearer k")[1])
        self.assertEqual(models["data"][0]["id"], "named")
        self.assertEqual(models["data"][0]["max_model_len"], CONTEXT)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        body = json.dumps({"prompt": "a", "max_tokens": 400, "temperature": 0, "stream": True})
        connection.request("POST", "/v1/completions", body, {"Authorization": "Bearer k"})
        reply = connection.getresponse()
        self.assertTrue(reply.read(50))
        server.process.send_signal(signal.SIGTERM)
        self.assertIn("[DONE]", reply.read().decode(), "the stream ends as if nothing had happened")
        connection.close()
        self.assertEqual(server.process.wait(60), 0, server.text())
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=2)

    def test_those_that_a_drain_cuts_off_are_told(self):
        server = Server(self.folder / "script", "--memory-limit", "1GB", "--threads", "1", "--drain-timeout", "0")
        streams = [server.open_stream(prompt="a", max_tokens=400, ignore_eos=True, n=64) for _ in range(8)]
        for raw in streams:
            self.assertTrue(raw.recv(50))
        server.process.send_signal(signal.SIGTERM)
        cut = 0
        for raw in streams:
            data = b""
            while piece := raw.recv(1 << 16):
                data += piece
            self.assertIn(b"data: [DONE]", data[-100:])
            cut += b'"The server is shutting down"' in data[-600:]
        self.assertEqual(server.process.wait(60), 0, server.text())
        self.assertGreater(cut, 0)

    def test_the_flags_of_vllm(self):
        template = self.folder / "other.jinja"
        template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}{{ '\\n' }}")
        server = Server(self.folder / "script", "--memory-limit", "1GB", "--served-model-name", "one", "--served-model-name", "two",
                        "--no-enable-prefix-caching", "--dtype", "bfloat16", "--chat-template", str(template),
                        "--allowed-origins", '["https://a.example", "https://b.example"]', "--max-model-len", "4096")
        self.addCleanup(server.stop)
        self.assertIn("--dtype bfloat16 changes nothing", server.text())
        self.assertIn("--max-model-len 4096 is more than the model's context of 512", server.text())
        models = json.loads(server.get("/v1/models")[1])["data"]
        self.assertEqual([model["id"] for model in models], ["one", "two"])
        self.assertEqual({model["max_model_len"] for model in models}, {CONTEXT})
        for name in ("one", "two"):
            status, reply = server.post("/v1/chat/completions", model=name, messages=[{"role": "user", "content": "x"}],
                                        temperature=0, return_token_ids=True)
            self.assertEqual((status, reply["model"]), (200, name), reply)
            self.assertEqual(bytes(reply["prompt_token_ids"]), b"<x>\n", "a template without BOS gets none")
            self.assertEqual(reply["choices"][0]["message"]["content"], "0123456789")
        for origin, expected in (("https://a.example", 200), ("https://b.example", 200), ("https://c.example", 403)):
            self.assertEqual(server.get("/v1/models", Origin=origin)[0], expected)
        for _ in range(2):
            server.post("/v1/completions", prompt=[97] * 200, max_tokens=1)
        self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 0)

    def test_a_second_signal_does_not_wait(self):
        server = Server(self.folder / "script", "--memory-limit", "1GB", "--threads", "1")
        streams = [server.open_stream(prompt="a", max_tokens=400, ignore_eos=True, n=64) for _ in range(8)]
        for raw in streams:
            self.assertTrue(raw.recv(50))
        server.process.send_signal(signal.SIGTERM)
        with self.assertRaises(OSError):  # draining: nobody new
            for _ in range(1000):
                socket.create_connection(("127.0.0.1", server.port), timeout=2).close()
                time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0, server.text())
        cut = 0
        for raw in streams:
            data = b""
            try:
                while piece := raw.recv(1 << 16):
                    data += piece
            except OSError:
                pass
            cut += b"[DONE]" not in data
        self.assertGreater(cut, 0)

    def test_errors_at_start(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        for flags, word in ((["--port", str(taken.getsockname()[1])], "cannot listen"), (["--port", "70000"], "--port"),
                            (["--port", "0", "--memory-limit", "much"], "--memory-limit"),
                            (["--port", "0", "--memory-limit", "1"], "memory"), (["--port", "0", "--dtype", "float16"], "--dtype"),
                            (["--port", "0", "--chat-template", "no.jinja"], "no.jinja"),
                            (["--port", "0", "--allowed-origins", "[5]"], "--cors-origin"),
                            (["--port", "0", "--drain-timeout", "-1"], "--drain-timeout")):
            result = subprocess.run([OCTAVO, "serve", str(self.folder / "script"), *flags], capture_output=True, text=True, timeout=120)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(word, result.stderr)
        result = subprocess.run([OCTAVO, "serve", str(self.folder / "nothing"), "--port", "0"], capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 1, result.stderr)


if __name__ == "__main__":
    OCTAVO = sys.argv.pop(1)
    unittest.main(verbosity=2)
