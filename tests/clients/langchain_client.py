"""LangChain's ChatOpenAI against `octavo serve`. Run by run.py."""
import asyncio
import os
import unittest

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

QUESTION = "Name the capital of France."


class City(BaseModel):
    name: str
    in_europe: bool
    inhabitants: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return city


class LangChain(unittest.TestCase):
    def setUp(self):
        self.chat = ChatOpenAI(model=os.environ["OCTAVO_MODEL"],
                               temperature=0,
                               max_tokens=30,
                               max_retries=0,
                               timeout=120)

    def test_invoke_and_stream_agree(self):
        answer = self.chat.invoke([SystemMessage("Answer briefly."), HumanMessage(QUESTION)])
        self.assertIsInstance(answer, AIMessage)
        self.assertIn("Paris", answer.content)
        self.assertGreater(answer.usage_metadata["output_tokens"], 0)
        chunks = list(self.chat.stream([SystemMessage("Answer briefly."), HumanMessage(QUESTION)], stream_usage=True))
        self.assertEqual("".join(chunk.content for chunk in chunks), answer.content)
        self.assertGreater(len(chunks), 3)
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        self.assertEqual(whole.usage_metadata["output_tokens"], answer.usage_metadata["output_tokens"])
        self.assertEqual(whole.response_metadata["finish_reason"], answer.response_metadata["finish_reason"])

    def test_batch(self):
        questions = [f"What is {a} plus {a}?" for a in range(2, 8)]
        together = [answer.content for answer in self.chat.batch(questions)]
        self.assertEqual(together, [self.chat.invoke(question).content for question in questions])

    def test_async_stream(self):
        async def collect():
            return "".join([chunk.content async for chunk in self.chat.astream(QUESTION)])

        self.assertEqual(asyncio.run(collect()), self.chat.invoke(QUESTION).content)

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            city = self.chat.bind(max_tokens=200).bound.with_structured_output(City, method=method).invoke(
                "Tell me about Paris.", max_tokens=200)
            self.assertIsInstance(city, City, method)

    def test_tools(self):
        bound = self.chat.bind_tools([get_weather], tool_choice="get_weather")
        answer = bound.invoke("How is the weather in Paris?", max_tokens=100)
        self.assertEqual(answer.tool_calls[0]["name"], "get_weather")
        self.assertIsInstance(answer.tool_calls[0]["args"]["city"], str)
        history = [
            HumanMessage("How is the weather in Paris?"), answer,
            ToolMessage("17 degrees", tool_call_id=answer.tool_calls[0]["id"])
        ]
        self.assertTrue(self.chat.invoke(history).content)

    def test_completions(self):
        plain = OpenAI(model=os.environ["OCTAVO_MODEL"], temperature=0, max_tokens=6, max_retries=0)
        self.assertIn("Paris", plain.invoke("The capital of France is"))
        self.assertEqual("".join(plain.stream("The capital of France is")), plain.invoke("The capital of France is"))


if __name__ == "__main__":
    unittest.main()
