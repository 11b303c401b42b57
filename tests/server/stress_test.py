#!/usr/bin/env python3
"""A thousand requests of all kinds, many clients that leave, at a page pool that is too small: every answer is its solo
answer or a clean refusal, every page comes back, memory stays where it is.

    python3 tests/server/stress_test.py OCTAVO [--requests N]
"""
import collections
import http.client
import json
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import threading
import time
import unittest

import server_test
from server_test import BOS, END, Server, write_model

REQUESTS, CLIENTS, PAGES = 1000, 24, 16
PAGE_TOKENS = 32
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 128, 192, 4, 2, 32, 512
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def random_tensors(seed):
    """Real layers, so that batch mates could be told from the answer if they touched it."""
    noise = random.Random(seed)

    def matrix(rows, cols, std):
        values = (noise.gauss(0, std) for _ in range(rows * cols))
        return [rows, cols], b"".join(struct.pack("<f", value)[2:] for value in values)

    ones = [HIDDEN], struct.pack("<f", 1.0)[2:] * HIDDEN
    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 1.0),
        "lm_head.weight": matrix(VOCAB, HIDDEN, 0.3),
        "model.norm.weight": ones
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        tensors[layer + "input_layernorm.weight"] = tensors[layer + "post_attention_layernorm.weight"] = ones
        for name, rows, cols in (("self_attn.q_proj", HEADS * HEAD_DIM,
                                  HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD_DIM,
                                            HIDDEN), ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
                                 ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM), ("mlp.gate_proj", INNER, HIDDEN),
                                 ("mlp.up_proj", INNER, HIDDEN), ("mlp.down_proj", HIDDEN, INNER)):
            tensors[layer + name + ".weight"] = matrix(rows, cols, 0.1)
    return tensors


def small_pool(model):
    """A server with PAGES pages: with no memory at all it says what it needs."""
    try:
        Server(model, *FLAGS, "--memory-limit", "1")
    except AssertionError as error:
        weights, step, page = map(int, re.search(r"weights (\d+) \+ step (\d+) \+ (\d+) bytes", str(error)).groups())
    server = Server(model, *FLAGS, "--memory-limit", str(weights + step + PAGES * page))
    assert f"for {PAGES * PAGE_TOKENS} tokens" in server.text(), server.text()
    return server


FLAGS = ("--quantization", "fp8", "--threads", "1", "--max-model-len", "256", "--max-num-seqs", "24",
         "--max-num-batched-tokens", "96")
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {
            "enum": ["x", "yy"]
        },
        "b": {
            "type": "integer"
        },
        "c": {
            "type": "boolean"
        }
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False
}


def good_requests(dice):
    """(path, body): each has one right answer."""
    shared = [dice.randrange(32, 127) for _ in range(150)]
    for i in range(64):
        body = {
            "seed": i,
            "temperature": dice.choice([0, 0, 0.7, 1.2]),
            "max_tokens": dice.randrange(1, 180),
            "ignore_eos": dice.random() < 0.7
        }
        if dice.random() < 0.3:
            body.update(top_p=0.9, top_k=40)
        if dice.random() < 0.2:
            body.update(repetition_penalty=1.2, presence_penalty=0.5)
        if dice.random() < 0.2:
            body.update(stop=[chr(dice.randrange(97, 123)), "ab"])
        kind = i % 8
        if kind < 4:
            length = dice.choice([1, 5, 20, 90, 150])
            prompt = [dice.randrange(VOCAB) for _ in range(length)]
            if dice.random() < 0.4:
                prompt[:length // 2] = shared[:length // 2]
            body["prompt"] = [[*prompt, BOS, j] for j in range(8)] if kind == 3 else prompt
            if kind == 1:
                body.update(logprobs=dice.randrange(4), echo=dice.random() < 0.5)
            if kind == 2:
                body["n"] = dice.randrange(1, 13)
            yield COMPLETION, body
        else:
            body["messages"] = [{
                "role": "user",
                "content": "".join(chr(dice.randrange(32, 127)) for _ in range(dice.choice([1, 30, 120])))
            }]
            if kind == 5:
                body.update(logprobs=True, top_logprobs=dice.randrange(6))
            if kind == 6:
                body.update(ignore_eos=False,
                            response_format={
                                "type": "json_schema",
                                "json_schema": {
                                    "name": "s",
                                    "schema": SCHEMA
                                }
                            })
            if kind == 7:
                body["n"] = 2
            yield CHAT, body


BAD = [(COMPLETION, '{"prompt":"a","temperature":NaN}'), (COMPLETION, '{"prompt":[99999]}'),
       (COMPLETION, '{"prompt":[]}'), (COMPLETION, json.dumps({"prompt": [65] * 300})), (COMPLETION, "{"),
       (CHAT, '{"messages":[]}'), (CHAT, '{"messages":[{"role":"user","content":5}]}'), (CHAT, "[" * 5000),
       (CHAT, '{"messages":"x","n":-1}'), (COMPLETION, '{"prompt":"a","logit_bias":{"-1":1}}')]


def essence(reply):
    """What an answer says: choices and usage without ids, times and the state of the cache."""
    usage = {key: reply["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return sorted(reply["choices"], key=lambda choice: choice["index"]), usage


class Clients:
    """Threads that send requests and compare what comes back."""
    def __init__(self, server, solo):
        self.server, self.solo = server, solo
        self.lock, self.wrong, self.seen = threading.Lock(), [], collections.Counter()

    def run(self, count, seed):
        left = iter(range(count))

        def client(number):
            dice = random.Random(seed * 1000 + number)
            while True:
                with self.lock:
                    if next(left, None) is None:
                        return
                try:
                    outcome = self.one(dice)
                except Exception as error:  # of any kind: the server owes every client an answer
                    outcome = f"error {error!r}"
                    self.wrong.append(outcome)
                with self.lock:
                    self.seen[outcome.split(" ")[0]] += 1

        threads = [threading.Thread(target=client, args=(i, )) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def one(self, dice):
        what = dice.random()
        if what < 0.08:
            path, body = dice.choice(BAD)
            status, text, _ = self.server.request("POST", path, body)
            if status != 400 or "message" not in json.loads(text)["error"]:
                self.wrong.append(f"{body[:80]}: {status} {text[:200]}")
            return "refused"
        which = dice.randrange(len(self.solo))
        path, body, expected = self.solo[which]
        if what < 0.40:
            return self.leave(dice, which, path, body, expected)
        if what < 0.70:
            status, text, _ = self.server.request("POST", path, body)
            if status == 200 and essence(json.loads(text)) != expected:
                self.wrong.append(f"request {which}: {text[:300]} instead of {str(expected)[:300]}")
            return self.status(status, text)
        events = self.server.stream(path, **body, stream_options={"include_usage": True})
        self.compare_stream(which, events, expected)
        return "streamed"

    def status(self, status, text):
        if status not in (200, 429):
            self.wrong.append(f"{status} {text[:200]}")
        return "answered" if status == 200 else "full"

    def compare_stream(self, which, events, expected):
        texts, reasons = collections.defaultdict(str), {}
        for event in events[:-2]:
            choice = event["choices"][0]
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
        choices, usage = expected
        right = all(texts[c["index"]] == text_of(c) and reasons.get(c["index"]) == c["finish_reason"] for c in choices)
        told = {key: events[-2]["usage"][key] for key in usage}
        if events[-1] != "[DONE]" or not right or told != usage:
            self.wrong.append(
                f"stream of request {which}: {dict(texts)} {reasons} {told} instead of {str(expected)[:400]}")

    def leave(self, dice, which, path, body, expected):
        """Hangs up: at once, in the middle of an answer, or with the body half sent."""
        data = json.dumps({**body, "stream": dice.random() < 0.8}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.connect()
            head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(data)}\r\n\r\n")
            sent = dice.choice([len(data), len(data), len(data), dice.randrange(len(data))])
            connection.sock.sendall(head.encode() + data[:sent])
            wanted, got = dice.choice([0, 0, 1, 300, 800, 2000, 5000]), b""
            while sent == len(data) and len(got) < wanted:
                piece = connection.sock.recv(wanted)
                if not piece:
                    break
                got += piece
            time.sleep(dice.choice([0, 0, 0.001, 0.01, 0.05]))
        finally:
            connection.close()
        if path == COMPLETION and len(expected[0]) == 1:
            text = "".join(
                json.loads(event)["choices"][0]["text"]
                for event in re.findall(r"data: (\{.*\})\n\n", got.decode(errors="replace")))
            if not text_of(expected[0][0]).startswith(text):
                self.wrong.append(f"beginning of request {which}: {text!r} instead of {expected}")
        return "left"


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"] or ""


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


class Stress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="octavo-stress-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        write_model(cls.folder / "model",
                    random_tensors(3),
                    hidden_size=HIDDEN,
                    intermediate_size=INNER,
                    vocab_size=VOCAB,
                    num_hidden_layers=LAYERS,
                    num_attention_heads=HEADS,
                    num_key_value_heads=KV_HEADS,
                    head_dim=HEAD_DIM)
        cls.server = small_pool(cls.folder / "model")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def idle(self):
        for _ in range(400):
            if self.server.metric("vllm:num_requests_running") + self.server.metric("vllm:num_requests_waiting") == 0:
                break
            time.sleep(0.05)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            self.assertEqual(self.server.metric(name), 0, name)

    def test_1_a_thousand_requests(self):
        solo = []
        for path, body in good_requests(random.Random(1)):
            status, text, _ = self.server.request("POST", path, body)
            self.assertEqual(status, 200, text)
            solo.append((path, body, essence(json.loads(text))))
        self.assertGreater(len({str(expected) for _, _, expected in solo}), 50, "the answers differ from one another")
        clients = Clients(self.server, solo)
        clients.run(REQUESTS // 2, 1)
        self.idle()
        before = resident(self.server.process.pid)
        clients.run(REQUESTS - REQUESTS // 2, 2)
        self.idle()
        after = resident(self.server.process.pid)
        print(dict(clients.seen), f"resident {before} -> {after} kB,",
              int(self.server.metric("vllm:num_preemptions_total")), "preemptions")
        self.assertEqual(clients.wrong[:3], [])
        self.assertEqual(sum(clients.seen.values()), REQUESTS)
        for outcome in ("answered", "streamed", "left", "refused"):
            self.assertGreater(clients.seen[outcome], REQUESTS // 40, clients.seen)
        self.assertGreater(self.server.metric("vllm:num_preemptions_total"), 0, "the pool was too small")
        self.assertGreater(self.server.metric('vllm:request_success_total{model_name="model",finished_reason="abort"}'),
                           0)
        self.assertLess(after, before * 1.05 + 1024, "memory grew")
        longest = {"prompt": [65] * 200, "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
        answers = [self.server.post(COMPLETION, **longest) for _ in range(2)]
        self.assertEqual(answers[0][1]["usage"]["total_tokens"], 256, "a request of the full context fits again")
        self.assertEqual(essence(answers[0][1]), essence(answers[1][1]))
        for path, body, expected in solo:  # and nothing is left of all that
            self.assertEqual(essence(json.loads(self.server.request("POST", path, body)[1])), expected)

    def test_3_preempted_sequences_are_counted_once(self):
        """Token counters and histograms are sums of the usages, however often sequences were put back and read again."""
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
                 "vllm:e2e_request_latency_seconds_count", "vllm:request_queue_time_seconds_count",
                 "vllm:request_generation_tokens_sum", "vllm:num_preemptions_total")
        before = [self.server.metric(name) for name in names]
        usages, lock = [], threading.Lock()

        def client(number):
            reply = self.server.post(COMPLETION, prompt=[32 + number] * 60, max_tokens=90, n=4, seed=number,
                                     temperature=1.0, ignore_eos=True)[1]
            with lock:
                usages.append(reply["usage"])

        threads = [threading.Thread(target=client, args=(i, )) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.idle()
        prompt, made, first, whole, queued, lengths, preempted = (self.server.metric(name) - b
                                                                  for name, b in zip(names, before))
        self.assertGreater(preempted, 0)
        self.assertEqual(prompt, sum(usage["prompt_tokens"] for usage in usages))
        self.assertEqual((made, lengths), (sum(usage["completion_tokens"] for usage in usages), ) * 2)
        self.assertEqual((made, first, whole, queued), (12 * 4 * 90, 48, 48, 48))

    def test_2_a_full_queue_is_told(self):
        """More choices than the queue holds: 429 with Retry-After for some; who comes again is answered."""
        outcomes, together = [], threading.Barrier(16)

        def client():
            body = {"prompt": "abc", "n": 128, "max_tokens": 24, "ignore_eos": True}
            together.wait()
            for _ in range(600):
                status, text, headers = self.server.request("POST", COMPLETION, body)
                outcomes.append((status, headers.get("Retry-After"), text[:60]))
                if status != 429:
                    return
                time.sleep(0.1)

        threads = [threading.Thread(target=client) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(collections.Counter(status for status, _, _ in outcomes)[200], 16)
        refused = [(after, text) for status, after, text in outcomes if status == 429]
        self.assertTrue(refused)
        for after, text in refused:
            self.assertEqual(after, "1")
            self.assertIn("at its limit of waiting", text)
        self.idle()


if __name__ == "__main__":
    server_test.OCTAVO = sys.argv.pop(1)
    if "--requests" in sys.argv:
        at = sys.argv.index("--requests")
        REQUESTS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main(verbosity=2)
