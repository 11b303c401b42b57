// What the goldens cannot say: limits, positions of errors, values that only JSON can give, use from several threads.
#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"

namespace octavo {
namespace {

Result<std::string> render(std::string_view source, const Json& variables = Json::object(),
                           TemplateLimits limits = {}) {
  OCTAVO_ASSIGN(const ChatTemplate parsed, ChatTemplate::parse(source, "test"));
  return parsed.render(variables, limits, 0);
}

std::string text_of(std::string_view source, const Json& variables = Json::object()) {
  const auto text = render(source, variables);
  return text ? *text : "error: " + text.error().message();
}

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// Renders under small limits: an error, soon, and without much memory.
void expect_refused(std::string_view source, std::string_view what) {
  SCOPED_TRACE(std::string(source.substr(0, 200)));
  TemplateLimits limits;
  limits.max_output = 100'000;
  limits.max_steps = 1'000'000;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const auto cpu_seconds = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = cpu_seconds();
  const auto text = render(source, {{"xs", {1, 2, 3}}, {"s", "abc"}}, limits);
  const double seconds = cpu_seconds() - start;
  getrusage(RUSAGE_SELF, &after);
  ASSERT_FALSE(text) << text->size();
  EXPECT_NE(text.error().what.find(what), std::string::npos) << text.error().message();
  EXPECT_LT(seconds, 10);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200'000) << "KiB";
}

TEST(ChatTemplateLimits, EndlessLoopsEnd) {
  expect_refused("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big");
  expect_refused("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too many steps");
  expect_refused(
      "{{ range(99999)|map('string')|map('upper')|map('lower')|map('trim')|map('length')|sum }}"
      "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
      "too many steps");
  expect_refused("{% for i in range(99999) %}{% if 'a' in 'b' * 90000 %}{% endif %}{% endfor %}", "too many steps");
  expect_refused(
      "{% set ns = namespace(l=range(90000)|list) %}{% for i in range(99999) %}{% if -1 in ns.l %}{% endif %}{% endfor "
      "%}",
      "too many steps");
  expect_refused(
      "{% set ns = namespace(l=[1, 2]) %}{% for i in range(150) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{% set m = namespace(l=[1, 2]) %}{% for i in range(150) %}{% set m.l = [m.l, m.l] %}{% endfor %}"
      "{{ ns.l == m.l }}",
      "too many steps");
}

TEST(ChatTemplateLimits, GrowingTextEnds) {
  expect_refused("{{ s * 10 ** 12 }}", "too much text");
  expect_refused("{{ s * 9223372036854775807 }}", "too much text");
  expect_refused("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 "too much text");
  expect_refused("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                 "too much text");
  expect_refused("{% for i in range(99999) %}{{ s }}{{ s }}{% endfor %}", "too much text");
  expect_refused("{{ range(99999)|join('abc') }}", "too much text");
  expect_refused("{{ ('x' * 90000).replace('', s * 30000) }}", "too much text");
  expect_refused("{{ ('x' * 90000)|replace('x', s * 30000) }}", "too much text");
  expect_refused("{{ ('\n' * 90000)|indent(90000, blank=true) }}", "too much text");
  expect_refused("{{ '%099999999d' % 1 }}", "too much text");
  expect_refused("{{ '%.99999999d' % 1 }}", "too much text");
  expect_refused("{{ '{:>2147483000}'.format(1) }}", "too much text");
  expect_refused("{{ s.center(2 ** 60) }}{{ s|center(2 ** 60) }}", "too much text");
  expect_refused("{{ s.ljust(2 ** 60) }}", "too much text");
  expect_refused("{{ s.zfill(2 ** 60) }}", "too much text");
  expect_refused("{{ ('\t' * 90000).expandtabs(2 ** 40) }}", "too much text");
  expect_refused("{{ xs|tojson(indent=2 ** 40) }}", "too much text");
  expect_refused("{{ [[[xs, xs], xs], xs]|tojson(indent=' ' * 90000) }}", "too much text");
  expect_refused(
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "too much text");
  expect_refused(
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson "
      "}}",
      "too much text");
  expect_refused("{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n > 0 else s * 9999 }}{% endmacro %}{{ m(50) }}",
                 "too much text");
}

TEST(ChatTemplateLimits, GrowingValuesEnd) {
  const std::string_view memory = "too much memory";
  expect_refused("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
                 memory);
  expect_refused("{% set ns = namespace(l=range(90000)|list) %}{{ ns.l * 9000000 }}", "too much text");
  expect_refused("{{ range(3)|batch(2 ** 40, 0)|list }}", "too many steps");
  expect_refused("{{ xs|slice(2 ** 40)|list }}", memory);
  expect_refused(
      "{% set ns = namespace(l=()) %}{% for i in range(99999) %}{% set ns.l = ns.l + ('x' * 90000,) %}{% endfor %}",
      memory);
  expect_refused(
      "{% set ns = namespace(n=none) %}{% for i in range(99999) %}{% set ns.n = namespace(s='x' * 90000, n=ns.n) %}{% "
      "endfor %}",
      memory);
}

TEST(ChatTemplateLimits, DepthEnds) {
  expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply");
  expect_refused("{% macro m() %}{{ caller() }}{% call m() %}{% endcall %}{% endmacro %}{% call m() %}{% endcall %}",
                 "too deeply");
  expect_refused(
      "{% macro m(x) %}{% if x %}{% for i in x recursive %}{{ m([[i]]) }}{% endfor %}{% endif %}{% endmacro %}{{ m(xs) "
      "}}",
      "too deeply");
  expect_refused("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion depth");
  expect_refused("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
                 "nested too deeply");
  expect_refused("{% set ns = namespace(l={}) %}{% for i in range(9999) %}{% set ns.l = {1: ns.l} %}{% endfor %}",
                 "nested too deeply");
  expect_refused(
      "{% set ns = namespace(l=xs) %}{% for i in range(9999) %}{% set ns.l = ns.l|map('upper') %}{% endfor %}",
      "nested too deeply");
  expect_refused("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", "recursion depth");
  const std::pair<const char*, const char*> nests[] = {
      {"(", ")"},       {"[", "]"},    {"{1:", "}"},    {"not ", ""},         {"-", ""},
      {"a[", "]"},      {"f(", ")"},   {"f(a=", ")"},   {"1 if 1 else ", ""}, {"x|f(", ")"},
      {"a is b(", ")"}, {"(1, ", ")"}, {"1 ** (", ")"}, {"a[1:", "]"}};
  for (const auto& [open, close] : nests) {
    const auto parsed =
        ChatTemplate::parse("{{ " + repeat(open, 100'000) + "x" + repeat(close, 100'000) + " }}", "deep");
    ASSERT_FALSE(parsed) << open;
    EXPECT_NE(parsed.error().what.find("too deeply"), std::string::npos) << open << parsed.error().message();
  }
  for (const char* block :
       {"{% if a %}", "{% for a in b %}", "{% macro a() %}", "{% set a %}", "{% with %}", "{% call a() %}"}) {
    const auto parsed = ChatTemplate::parse(repeat(block, 100'000), "deep");
    ASSERT_FALSE(parsed) << block;
    EXPECT_NE(parsed.error().what.find("too deeply"), std::string::npos) << block << parsed.error().message();
  }
  for (const char* chain : {"+ a ", ".a", "|string", "[0]", "()", " and a ", " or a ", " * a ", " ** a ", " if a "}) {
    const auto parsed = ChatTemplate::parse("{{ a " + repeat(chain, 100'000) + "}}", "long");
    ASSERT_FALSE(parsed) << chain;
    EXPECT_NE(parsed.error().what.find("too deeply"), std::string::npos) << chain << parsed.error().message();
  }
  EXPECT_TRUE(render("{{ 'a'" + repeat(" ~ 'a'", 100'000) + " }}"));
  EXPECT_TRUE(render("{{ 1" + repeat(" == 1", 100'000) + " }}"));
  EXPECT_TRUE(render("{{ 'a'" + repeat(" + 'a'", 400) + " }}"));
  EXPECT_TRUE(render("{% if a %}" + repeat("{% elif a %}", 100'000) + "{% endif %}"));
}

TEST(ChatTemplateLimits, AreHighEnoughForLongChats) {
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'x')}});
  const auto text = render(
      "{% set ns = namespace(last=0) %}{% for m in messages[::-1] %}{% if m.role == 'user' %}{% set ns.last = "
      "loop.index0 %}"
      "{% endif %}{% endfor %}{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '\n' }}{% endfor %}",
      {{"messages", messages}});
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_GT(text->size(), 4'000'000u);
  EXPECT_EQ(text_of("{% macro m(n) %}{% if n > 0 %}{% if true %}{{ m(n - 1) }}{% endif %}{% endif %}x{% endmacro %}{{ "
                    "m(100)|length }}"),
            "101");
}

TEST(ChatTemplate, ErrorsNameTheirPlace) {
  const auto place = [](std::string_view source) {
    const auto text = render(source);
    return text ? "no error" : text.error().where;
  };
  EXPECT_EQ(place("line one\n  {% frob %}"), "test, line 2, column 6");
  EXPECT_EQ(place("ä{{ 'é' ! }}"), "test, line 1, column 9");
  EXPECT_EQ(place("a\r\nb\r\n{{ x.y }}"), "test, line 3, column 5");
  EXPECT_EQ(place("{{ 1 }}\n{{ [1,\n 2] + 'a' }}"), "test, line 2, column 4");
  EXPECT_EQ(place("{% if true %}\n\n{{ raise_exception('no') }}{% endif %}"), "test, line 3, column 19");
  EXPECT_EQ(place("{% if true %}\n{% for %}"), "test, line 2, column 8");
  EXPECT_EQ(place("{{ x|urlize }}"), "test, line 1, column 6");
}

TEST(ChatTemplate, UnsupportedSyntaxIsNamedWhenParsed) {
  const auto what = [](std::string_view source) {
    const auto parsed = ChatTemplate::parse(source, "test");
    return parsed ? "no error" : parsed.error().what;
  };
  EXPECT_EQ(what("{% include 'x' %}"), "the tag 'include' is not supported in chat templates");
  EXPECT_EQ(what("{% block a %}{% endblock %}"), "the tag 'block' is not supported in chat templates");
  EXPECT_EQ(what("{% if false %}{{ x|pprint }}{% endif %}"), "the filter 'pprint' is not supported");
  EXPECT_EQ(what("{{ x[1:2, 3] }}"), "a slice within a tuple of keys is not supported");
  EXPECT_EQ(what("{{ 99999999999999999999 }}"), "integers beyond 64 bits are not supported");
  EXPECT_EQ(what("\xff"), "the chat template is not valid UTF-8");
  EXPECT_EQ(what(std::string(5 << 20, ' ')), "the chat template is too large");
}

TEST(ChatTemplate, RaisedMessageIsTheError) {
  const auto text = render("{{ raise_exception('Roles must alternate!') }}");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().what, "Roles must alternate!");
}

TEST(ChatTemplate, MutationIsRefusedAsTheSandboxDoes) {
  const Json variables = {{"l", {1}}, {"d", {{"a", 1}}}};
  for (const char* call :
       {"l.append(1)", "l.pop()", "d.update({})", "d.pop('a')", "d.setdefault('b', 1)", "l.sort()"}) {
    const auto text = render("{{ " + std::string(call) + " }}", variables);
    ASSERT_FALSE(text) << call;
    EXPECT_NE(text.error().what.find("is unsafe"), std::string::npos) << call;
  }
}

TEST(ChatTemplate, IntegersBeyond64BitsPassThrough) {
  const Json variables = {{"id", 18446744073709551615u}, {"low", -9223372036854775807 - 1}};
  EXPECT_EQ(text_of("{{ id }} {{ {'id': id}|tojson }} {{ low }} {{ id is number }}", variables),
            "18446744073709551615 {\"id\": 18446744073709551615} -9223372036854775808 True");
  EXPECT_FALSE(render("{{ id + 1 }}", variables));
  EXPECT_FALSE(render("{{ low - 1 }}", variables));
  EXPECT_FALSE(render("{{ -low }}", variables));
  EXPECT_FALSE(render("{{ low // -1 }}", variables));
}

TEST(ChatTemplate, VariablesMustBeAnObjectOfValidText) {
  EXPECT_FALSE(render("x", Json::array()));
  const auto text = render("{{ x }}", {{"x", "\xff"}});
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().what.find("UTF-8"), std::string::npos);
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  EXPECT_FALSE(render("x", {{"deep", deep}}));
}

TEST(ChatTemplate, RendersTheSameFromSeveralThreads) {
  const auto parsed = ChatTemplate::parse(
      "{% macro m(x) %}{{ x|upper }}{% endmacro %}{% set ns = namespace(n=0) %}{% for i in range(200) %}"
      "{% set ns.n = ns.n + i %}{{ m('a' ~ i) }}{% endfor %}{{ ns.n }}",
      "threads");
  ASSERT_TRUE(parsed);
  const auto expected = parsed->render(Json::object());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts)
    threads.emplace_back([&parsed, &text] {
      for (int i = 0; i < 20; ++i) text = *parsed->render(Json::object());
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, *expected);
}

}  // namespace
}  // namespace octavo
