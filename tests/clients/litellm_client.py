"""LiteLLM against `octavo serve`. Run by run.py."""
import os
import unittest
import warnings

warnings.simplefilter("ignore")  # of its own models
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import, which would fetch the list of prices

import litellm  # noqa: E402

litellm.suppress_debug_info = True

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


class LiteLlm(unittest.TestCase):
    def complete(self, messages=QUESTION, **fields):
        return litellm.completion(**{
            "model": "hosted_vllm/" + os.environ["OCTAVO_MODEL"],
            "api_base": os.environ["OPENAI_BASE_URL"],
            "api_key": "none",
            "messages": messages,
            "temperature": 0,
            "max_tokens": 24,
            "max_retries": 0,
            **fields
        })

    def test_answers_are_the_same_streamed(self):
        whole = self.complete().choices[0]
        self.assertIn("Paris", whole.message.content)
        text, reasons, usage = "", [], None
        for chunk in self.complete(stream=True, stream_options={"include_usage": True}):
            usage = getattr(chunk, "usage", None) or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual((text, reasons), (whole.message.content, [whole.finish_reason]))
        self.assertGreater(usage.completion_tokens, 0)

    def test_as_any_openai_server(self):
        answer = self.complete(model="openai/" + os.environ["OCTAVO_MODEL"])
        self.assertEqual(answer.choices[0].message.content, self.complete().choices[0].message.content)

    def test_a_prompt_beyond_the_context_has_its_own_error(self):
        for provider in ("hosted_vllm", "openai"):
            for words in (3000, 500_000):  # more tokens than the context has; more bytes than they could have
                with self.assertRaises(litellm.ContextWindowExceededError):
                    self.complete([{"role": "user", "content": "word " * words}],
                                  model=f"{provider}/{os.environ['OCTAVO_MODEL']}")

    def test_other_errors_have_theirs(self):
        with self.assertRaises(litellm.BadRequestError) as caught:
            self.complete(temperature=-1)
        self.assertNotIsInstance(caught.exception, litellm.ContextWindowExceededError)
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(litellm.NotFoundError):
            self.complete(model="hosted_vllm/another")


if __name__ == "__main__":
    unittest.main(warnings="ignore")
