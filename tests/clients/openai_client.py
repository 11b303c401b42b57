"""The official OpenAI client against `octavo serve`. Run by run.py."""
import json
import os
import time
import unittest
import urllib.request

import jsonschema
import openai
from pydantic import BaseModel

MODEL = os.environ["OCTAVO_MODEL"]
CAPITAL = [{"role": "user", "content": "Name the capital of France."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string"
                },
                "unit": {
                    "enum": ["celsius", "fahrenheit"]
                }
            },
            "required": ["city", "unit"],
            "additionalProperties": False
        }
    }
}


def metric(name):
    text = urllib.request.urlopen(os.environ["OCTAVO_URL"] + "/metrics", timeout=30).read().decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


class OpenAi(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(max_retries=0, timeout=120)
        self.addCleanup(self.client.close)

    def chat(self, messages=CAPITAL, **fields):
        return self.client.chat.completions.create(model=MODEL,
                                                   messages=messages,
                                                   **{
                                                       "temperature": 0,
                                                       "max_tokens": 24,
                                                       **fields
                                                   })

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_chat_is_the_same_streamed(self):
        whole = self.chat(max_tokens=40)
        self.assertIn("Paris", whole.choices[0].message.content)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        text, reasons, usage, ids = "", [], None, set()
        for chunk in self.chat(max_tokens=40, stream=True, stream_options={"include_usage": True}):
            ids.add(chunk.id)
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(reasons, [whole.choices[0].finish_reason])
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens),
                         (whole.usage.prompt_tokens, whole.usage.completion_tokens))
        self.assertEqual(len(ids), 1)

    def test_the_streaming_helper_accumulates(self):
        with self.client.chat.completions.stream(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=24) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, deltas)
        self.assertEqual(deltas, self.chat().choices[0].message.content)

    def test_chat_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
        self.assertEqual("".join(entry.token for entry in choice.logprobs.content), choice.message.content)
        for entry in choice.logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob, "greedy")

    def test_completions_with_echo_and_logprobs(self):
        prompt = "The capital of France is"
        reply = self.client.completions.create(model=MODEL,
                                               prompt=[prompt, "Two caf\u00e9s \N{HOT PEPPER} and"],
                                               max_tokens=4,
                                               temperature=0,
                                               echo=True,
                                               logprobs=2)
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        self.assertTrue(reply.choices[0].text.startswith(prompt + " Paris"), reply.choices[0].text)
        for choice in reply.choices:
            told = choice.logprobs
            self.assertEqual(
                {len(told.tokens)},
                {len(told.token_logprobs), len(told.top_logprobs),
                 len(told.text_offset)})
            self.assertIsNone(told.token_logprobs[0])
            for token, offset in zip(told.tokens, told.text_offset):
                if not token.startswith("bytes:"):
                    self.assertEqual(choice.text[offset:offset + len(token)], token)

    def test_completions_stream_and_token_ids(self):
        fields = {"model": MODEL, "max_tokens": 6, "temperature": 0}
        whole = self.client.completions.create(prompt="One, two, three,", **fields).choices[0].text
        pieces = [
            chunk.choices[0].text
            for chunk in self.client.completions.create(prompt="One, two, three,", stream=True, **fields)
        ]
        self.assertEqual("".join(pieces), whole)
        request = urllib.request.Request(os.environ["OCTAVO_URL"] + "/tokenize",
                                         json.dumps({
                                             "prompt": "One, two, three,"
                                         }).encode())
        ids = json.load(urllib.request.urlopen(request, timeout=30))["tokens"]
        self.assertEqual(self.client.completions.create(prompt=ids, **fields).choices[0].text, whole)

    def test_samples_stop_and_seed(self):
        ask = {
            "messages": [{
                "role": "user",
                "content": "Write one sentence about the sea."
            }],
            "temperature": 1.0,
            "seed": 7,
            "n": 3
        }
        first, again = self.chat(**ask), self.chat(**ask)
        texts = [choice.message.content for choice in first.choices]
        self.assertEqual(len(set(texts)), 3, "three samples")
        self.assertEqual(texts, [choice.message.content for choice in again.choices], "the same seed")
        self.assertNotEqual(texts, [choice.message.content for choice in self.chat(**{**ask, "seed": 8}).choices])
        choice = self.chat(stop=["Paris"]).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertNotIn("Paris", choice.message.content)
        self.assertEqual(self.chat(max_tokens=1).choices[0].finish_reason, "length")
        self.assertEqual(
            self.client.chat.completions.create(model=MODEL, messages=CAPITAL,
                                                max_completion_tokens=2).usage.completion_tokens, 2)

    def test_json_schema(self):
        schema = {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string",
                    "maxLength": 30
                },
                "country": {
                    "enum": ["France", "Italy"]
                },
                "population": {
                    "type": "integer"
                },
                "tags": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "maxLength": 10
                    },
                    "maxItems": 3
                }
            },
            "required": ["city", "country", "population", "tags"],
            "additionalProperties": False
        }
        for seed in range(3):
            choice = self.chat([{
                "role": "user",
                "content": "Describe Paris as JSON."
            }],
                               temperature=0.8,
                               seed=seed,
                               max_tokens=300,
                               response_format={
                                   "type": "json_schema",
                                   "json_schema": {
                                       "name": "city",
                                       "strict": True,
                                       "schema": schema
                                   }
                               }).choices[0]
            self.assertEqual(choice.finish_reason, "stop", choice.message.content)
            jsonschema.validate(json.loads(choice.message.content), schema)

    def test_parsed_models_and_json_objects(self):
        class Answer(BaseModel):
            yes: bool
            number: int

        parsed = self.client.chat.completions.parse(model=MODEL,
                                                    messages=[{
                                                        "role": "user",
                                                        "content": "Is 7 prime? Which number?"
                                                    }],
                                                    response_format=Answer,
                                                    temperature=0,
                                                    max_tokens=60).choices[0].message.parsed
        self.assertIsInstance(parsed, Answer)
        choice = self.chat([{
            "role": "user",
            "content": "Give me a small JSON object."
        }],
                           max_tokens=400,
                           seed=1,
                           response_format={
                               "type": "json_object"
                           }).choices[0]
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_tools(self):
        messages = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            message = self.chat(messages, tools=[WEATHER], tool_choice=choice, max_tokens=120).choices[0].message
            call = message.tool_calls[0]
            self.assertEqual(call.function.name, "get_weather")
            jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
            arguments, names = "", []
            for chunk in self.chat(messages, tools=[WEATHER], tool_choice=choice, max_tokens=120, stream=True):
                for delta in chunk.choices[0].delta.tool_calls or []:
                    arguments += delta.function.arguments or ""
                    names += [delta.function.name] if delta.function.name else []
            self.assertEqual((names, json.loads(arguments)), (["get_weather"], json.loads(call.function.arguments)))
        history = messages + [
            message.model_dump(exclude_none=True), {
                "role": "tool",
                "tool_call_id": call.id,
                "content": "17 degrees"
            }
        ]
        self.assertTrue(self.chat(history, tools=[WEATHER], tool_choice="none").choices[0].message.content)
        self.chat(messages, tools=[WEATHER])  # auto: whatever the model says is an answer

    def test_errors_have_their_types(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": "word " * 5000}])
        self.assertIn("maximum context length is 2048 tokens", str(caught.exception))
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="another", messages=CAPITAL)
        with self.assertRaises(openai.BadRequestError):
            self.chat([])

    def test_a_stream_left_in_the_middle_is_cancelled(self):
        aborted = f'vllm:request_success_total{{model_name="{MODEL}",finished_reason="abort"}}'
        before = metric(aborted)
        stream = self.chat(max_tokens=1500, stream=True, extra_body={"ignore_eos": True})
        for _, chunk in zip(range(5), stream):
            self.assertTrue(chunk.choices)
        stream.close()
        for _ in range(200):
            if metric("vllm:num_requests_running") == 0:
                break
            time.sleep(0.05)
        self.assertEqual(metric(aborted), before + 1)

    def test_async_clients_at_once(self):
        import asyncio

        async def together():
            async with openai.AsyncOpenAI(max_retries=0, timeout=120) as client:
                return await asyncio.gather(
                    *(client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=24)
                      for _ in range(12)))

        texts = {reply.choices[0].message.content for reply in asyncio.run(together())}
        self.assertEqual(texts, {self.chat().choices[0].message.content}, "the same answer alone and in company")


if __name__ == "__main__":
    unittest.main()
