"""Renders the templates of the chat template tests with jinja2, in the environment that the hubs' tools use:
ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, `generation` blocks, a `tojson` that is
json.dumps, `raise_exception` and `strftime_now`.

    pip install jinja2==3.1.6
    python tests/tools/make_chat_template_goldens.py [--hub NAME=TEMPLATE_FILE ...]

Writes tests/data/chat_templates/{snippets,families,hub}.json: every template with its variables and the text, or the
error, that jinja2 makes of it. Without --hub the templates already in hub.json are rendered again.
"""

import argparse
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from chat_template_snippets import EXPRESSIONS, FILTERS, PRINTING, TEMPLATES, TESTS, VARIABLES

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat_templates"
NOW = 1751968800  # 2025-07-08 10:00:00 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: renders its body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(text):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(text)


ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = to_json
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["strftime_now"] = strftime_now


def outcome(template, variables):
    try:
        compiled = ENVIRONMENT.from_string(template)
    except (jinja2.exceptions.TemplateSyntaxError, SyntaxError) as error:
        return {"syntax_error": str(error.msg if isinstance(error, SyntaxError) else error.message),
                "line": None if isinstance(error, SyntaxError) else error.lineno}  # Python's line is in the generated code
    try:
        return {"output": compiled.render(**variables)}
    except Exception as error:  # whatever Python raises is what the template's author sees
        return {"error": type(error).__name__, "message": str(error)}


def tool(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


TOOLS = [
    tool("get_weather", "Weather of a place <now> & later.", {
        "location": {"type": "string", "description": "City, e.g. \"Zürich\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "default": 3, "nullable": True}}, ["location"]),
    tool("search", "Searches.", {
        "queries": {"type": "array", "items": {"type": "string"}},
        "filters": {"type": "array", "items": {"type": "object", "properties": {
            "field": {"type": ["string", "null"]}, "range": {"type": "object", "properties": {
                "low": {"type": "number"}, "high": {"oneOf": [{"type": "number"}, {"type": "string"}]}}}},
            "required": ["field"]}},
        "strict": {"type": "boolean", "default": False}, "anything": {}}, []),
    {"type": "function", "function": {"name": "now", "description": "Time.", "parameters": {"type": "object", "properties": {}}}},
]

USER = {"role": "user", "content": "What is 2+2?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"type": "function", "id": "abcdef123", "function": {"name": "get_weather", "arguments": {"location": "Zürich", "days": 2}}}]}
CALL_TEXT = {"role": "assistant", "content": "Let me look.", "tool_calls": [
    {"type": "function", "id": "123456789", "function": {"name": "search", "arguments": "{\"queries\": [\"a\", \"b\"]}"}},
    {"type": "function", "id": "987654321", "function": {"name": "now", "arguments": "{}"}}]}
CONVERSATIONS = {
    "one": [USER],
    "system": [{"role": "system", "content": "  Be brief.\n"}, USER],
    "turns": [USER, {"role": "assistant", "content": " 4 "}, {"role": "user", "content": "And 3+3?\n"}],
    "answered": [USER, {"role": "assistant", "content": "<think>\nadd them\n</think>\n\n4"}],
    "thoughts": [USER, {"role": "assistant", "content": "<think>\na\n</think>\n\n4"}, {"role": "user", "content": "more"},
                 {"role": "assistant", "reasoning_content": "\nb\n", "content": "5"}],
    "tools": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather?"}, CALL,
              {"role": "tool", "content": "{\"temp\": 21}", "tool_call_id": "abcdef123"}, {"role": "assistant", "content": "21 degrees."},
              {"role": "user", "content": "Thanks"}],
    "two_tools": [USER, CALL_TEXT, {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Sys"}]},
              {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]}],
    "wrong_order": [USER, USER],
    "odd_role": [USER, {"role": "critic", "content": "no"}],
    "tool_first": [{"role": "tool", "content": "x"}, USER],
    "unicode": [{"role": "user", "content": "日本語 🦊 <|end|> {{ x }} \"q\" 'a'\r\n\tTab"}],
    "empty_text": [{"role": "user", "content": ""}],
    "none": [],
    "no_content": [{"role": "user"}],
}
SETTINGS = [
    {"add_generation_prompt": True},
    {},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": True, "enable_thinking": False, "thinking": True, "system_allowed": True, "reasoning_effort": "high",
     "use_clock": True, "tools_in_user_message": False, "builtin_tools": ["code_interpreter", "search"]},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def conversation_cases(name, template):
    for conversation, messages in CONVERSATIONS.items():
        for number, settings in enumerate(SETTINGS):
            variables = {"messages": messages, **settings, **TOKENS}
            yield {"name": f"{name}, {conversation}, {number}", "conversation": conversation, "settings": number,
                   **outcome(template, variables)}


def write(name, content):
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (DATA / name).write_text(text + "\n", encoding="utf-8")


def shared():
    return {"now": NOW, "conversations": CONVERSATIONS, "settings": SETTINGS, "tokens": TOKENS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", action="append", default=[], metavar="NAME=FILE")
    options = parser.parse_args()

    printed = [item for line in PRINTING for item in line.split()]
    snippets = ["{{ " + text + " }}" for text in printed + EXPRESSIONS + FILTERS + TESTS] + TEMPLATES
    cases = [{"template": text, **outcome(text, VARIABLES)} for text in dict.fromkeys(snippets)]
    # What prints an object's address differs from run to run.
    write("snippets.json", {"now": NOW, "variables": VARIABLES,
                            "cases": [case for case in cases if " at 0x" not in case.get("output", "")]})

    families = sorted((DATA / "families").glob("*.jinja"))
    write("families.json", {**shared(), "templates": {path.stem: list(conversation_cases(path.stem, path.read_text(encoding="utf-8")))
                                                       for path in families}})

    if options.hub:
        sources = {name: pathlib.Path(path).read_text(encoding="utf-8") for name, path in (item.split("=", 1) for item in options.hub)}
    else:
        sources = json.loads((DATA / "hub.json").read_text(encoding="utf-8"))["sources"]
    write("hub.json", {**shared(), "sources": sources,
                       "templates": {name: list(conversation_cases(name, source)) for name, source in sources.items()}})


if __name__ == "__main__":
    main()
