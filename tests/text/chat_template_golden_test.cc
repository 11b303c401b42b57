// Every template of tests/data/chat_templates against what jinja2 made of it
// (tests/tools/make_chat_template_goldens.py).
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <filesystem>
#include <set>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace octavo {
namespace {

const std::filesystem::path kData = std::filesystem::path(OCTAVO_TEST_DATA) / "chat_templates";

Json read_goldens(const std::string& name) {
  const auto text = read_text_file(kData / name);
  EXPECT_TRUE(text) << text.error().message();
  auto json = parse_json(*text, name);
  EXPECT_TRUE(json) << json.error().message();
  return *json;
}

// The errors whose words are jinja2's own, or the template's.
const std::set<std::string> kSameWords = {"UndefinedError",       "TemplateError",     "SecurityError",
                                          "TemplateRuntimeError", "ZeroDivisionError", "FilterArgumentError"};

void expect_same(const std::string& source, const Json& variables, const Json& expected, int64_t now) {
  SCOPED_TRACE("template: " + source.substr(0, 300));
  const auto parsed = ChatTemplate::parse(source, "golden");
  if (expected.contains("syntax_error")) {
    ASSERT_FALSE(parsed) << "jinja2 refuses it: " << expected["syntax_error"];
    if (expected["line"].is_number()) {
      const std::string line = "line " + std::to_string(expected["line"].get<int>()) + ",";
      EXPECT_NE(parsed.error().where.find(line), std::string::npos) << parsed.error().message() << "\njinja2: " << line;
    }
    return;
  }
  ASSERT_TRUE(parsed) << parsed.error().message();
  const auto text = parsed->render(variables, {}, now);
  if (expected.contains("output")) {
    ASSERT_TRUE(text) << text.error().message();
    EXPECT_EQ(*text, expected["output"].get<std::string>());
    return;
  }
  ASSERT_FALSE(text) << "jinja2 raises " << expected["error"] << ": " << expected["message"] << "\nhere: " << *text;
  if (kSameWords.contains(expected["error"].get<std::string>())) {
    EXPECT_EQ(text.error().what, expected["message"].get<std::string>());
  }
}

class ChatTemplateGolden : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_F(ChatTemplateGolden, Snippets) {
  const Json goldens = read_goldens("snippets.json");
  ASSERT_GT(goldens["cases"].size(), 1000u);
  for (const Json& golden : goldens["cases"])
    expect_same(golden["template"].get<std::string>(), goldens["variables"], golden, goldens["now"].get<int64_t>());
}

// A template of tests/data under every conversation and setting.
void expect_conversations(const std::string& source, const Json& goldens, const Json& cases) {
  ASSERT_FALSE(cases.empty());
  for (const Json& golden : cases) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    Json variables = goldens["tokens"];
    variables["messages"] = goldens["conversations"][golden["conversation"].get<std::string>()];
    variables.update(goldens["settings"][golden["settings"].get<size_t>()]);
    expect_same(source, variables, golden, goldens["now"].get<int64_t>());
  }
}

TEST_F(ChatTemplateGolden, Families) {
  const Json goldens = read_goldens("families.json");
  ASSERT_GE(goldens["templates"].size(), 7u);
  for (const auto& [name, cases] : goldens["templates"].items()) {
    const auto source = read_text_file(kData / "families" / (name + ".jinja"));
    ASSERT_TRUE(source) << source.error().message();
    expect_conversations(*source, goldens, cases);
  }
}

TEST_F(ChatTemplateGolden, HubModels) {
  const Json goldens = read_goldens("hub.json");
  ASSERT_GE(goldens["templates"].size(), 3u);
  for (const auto& [name, cases] : goldens["templates"].items())
    expect_conversations(goldens["sources"][name].get<std::string>(), goldens, cases);
}

}  // namespace
}  // namespace octavo
