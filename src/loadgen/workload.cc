#include "loadgen/workload.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"

namespace octavo {
namespace {

constexpr std::string_view kWords[] = {
    "time",   "year",   "people", "way",     "day",     "man",     "thing",    "woman",     "life",       "child",
    "world",  "school", "state",  "family",  "student", "group",   "country",  "problem",   "hand",       "part",
    "place",  "case",   "week",   "company", "system",  "program", "question", "work",      "government", "number",
    "night",  "point",  "home",   "water",   "room",    "mother",  "area",     "money",     "story",      "fact",
    "month",  "lot",    "right",  "study",   "book",    "eye",     "job",      "word",      "business",   "issue",
    "side",   "kind",   "head",   "house",   "service", "friend",  "father",   "power",     "hour",       "game",
    "line",   "end",    "member", "law",     "car",     "city",    "name",     "president", "team",       "minute",
    "idea",   "body",   "back",   "parent",  "face",    "others",  "level",    "office",    "door",       "health",
    "person", "art",    "war",    "history", "party",   "result",  "change",   "morning",   "reason",     "research",
    "girl",   "guy",    "moment", "air",     "teacher", "force",   "foot",     "boy",       "age",        "policy",
    "music",  "market", "sense",  "nation",  "plan",    "college", "interest", "death"};

// One request's body from its prompt and length.
std::string request_body(const RequestShape& shape, const char* key, Json prompt, int64_t output) {
  Json body = {{"model", shape.model}};
  body[key] = std::move(prompt);
  body[shape.chat ? "max_completion_tokens" : "max_tokens"] = output;
  body["temperature"] = shape.temperature;
  if (shape.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json user_message(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

int64_t draw(Random& random, LengthRange range) {
  return range.low + static_cast<int64_t>(random.below(static_cast<uint64_t>(range.high - range.low) + 1));
}

void add_tokens(Json& ids, int64_t count, const std::vector<int64_t>& pool, Random& random) {
  for (int64_t i = 0; i < count; ++i) ids.push_back(pool[random.below(pool.size())]);
}

void add_words(std::string& text, int64_t count, Random& random) {
  for (int64_t i = 0; i < count; ++i) {
    if (!text.empty()) text += ' ';
    text += kWords[random.below(std::size(kWords))];
  }
}

// A dataset's line, read.
struct Line {
  const char* key = "prompt";
  Json prompt;
  int64_t output = 0;  // 0: not said
};

bool is_token_list(const Json& json) {
  if (!json.is_array() || json.empty()) return false;
  for (const Json& id : json)
    if (!id.is_number_integer() || id.get<int64_t>() < 0) return false;
  return true;
}

Result<Line> read_line(std::string_view text, const std::string& where, bool chat) {
  OCTAVO_ASSIGN(Json json, parse_json(text, where));
  const auto refuse = [&where](const char* what, const char* expected, const char* remedy = "") {
    return fail({.what = what, .where = where, .expected = expected, .remedy = remedy});
  };
  static constexpr const char* kShape = "{\"prompt\": text or token ids} or {\"messages\": [...]}";
  if (!json.is_object()) return refuse("a line of the data set is no object", kShape);
  Line line;
  for (const char* key : {"output_tokens", "max_tokens"})
    if (json.contains(key) && !json[key].is_null()) {
      if (!json[key].is_number_integer() || json[key].get<int64_t>() < 1)
        return refuse("a line's length of output is out of range", "a whole number of at least 1");
      line.output = json[key].get<int64_t>();
      break;
    }
  if (json.contains("messages")) {
    if (!chat)
      return refuse("a line has messages, which completions do not take", kShape,
                    "give --endpoint /v1/chat/completions");
    if (!json["messages"].is_array() || json["messages"].empty())
      return refuse("a line's messages are no list", "a list of {\"role\", \"content\"}");
    line.key = "messages";
    line.prompt = std::move(json["messages"]);
  } else if (json.contains("prompt") && json["prompt"].is_string()) {
    line.key = chat ? "messages" : "prompt";
    line.prompt = chat ? user_message(json["prompt"].get<std::string>()) : std::move(json["prompt"]);
  } else if (json.contains("prompt") && is_token_list(json["prompt"])) {
    if (chat)
      return refuse("a line's prompt is token ids, which a chat does not take", kShape,
                    "give --endpoint /v1/completions");
    line.prompt = std::move(json["prompt"]);
  } else {
    return refuse("a line of the data set has no prompt", kShape);
  }
  return line;
}

}  // namespace

Result<LengthRange> parse_length_range(std::string_view text, std::string_view flag) {
  static constexpr int64_t kMost = 10'000'000;
  const auto number = [](std::string_view digits) -> int64_t {
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string_view::npos)
      return 0;
    return std::atoll(std::string(digits).c_str());
  };
  const size_t dash = text.find('-');
  const int64_t low = number(text.substr(0, dash));
  const int64_t high = dash == std::string_view::npos ? low : number(text.substr(dash + 1));
  if (low < 1 || high < low || high > kMost)
    return fail({.what = "not a length",
                 .where = std::string(flag),
                 .found = std::string(text),
                 .expected = "tokens, as in 128, or a range, as in 64-256"});
  return LengthRange{low, high};
}

std::vector<std::string> synthetic_requests(const SyntheticWorkload& workload, const RequestShape& shape) {
  Random random(workload.seed);
  Json shared_ids = Json::array();
  std::string shared_text;
  if (shape.chat)
    add_words(shared_text, workload.shared_prefix, random);
  else
    add_tokens(shared_ids, workload.shared_prefix, workload.token_ids, random);
  std::vector<std::string> bodies;
  bodies.reserve(workload.count);
  for (size_t i = 0; i < workload.count; ++i) {
    const int64_t input = draw(random, workload.input), output = draw(random, workload.output);
    if (shape.chat) {
      std::string text = shared_text;
      add_words(text, input, random);
      bodies.push_back(request_body(shape, "messages", user_message(text), output));
    } else {
      Json ids = shared_ids;
      add_tokens(ids, input, workload.token_ids, random);
      bodies.push_back(request_body(shape, "prompt", std::move(ids), output));
    }
  }
  return bodies;
}

Result<std::vector<std::string>> dataset_requests(const std::filesystem::path& file, size_t count, LengthRange output,
                                                  uint64_t seed, const RequestShape& shape) {
  OCTAVO_ASSIGN(const std::string text, read_text_file(file));
  Random random(seed);
  std::vector<Line> lines;
  std::string_view rest = text;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    OCTAVO_ASSIGN(Line read, read_line(line, fmt::format("{}, line {}", file.string(), number), shape.chat));
    lines.push_back(std::move(read));
    if (count > 0 && lines.size() == count) break;
  }
  if (lines.empty())
    return fail({.what = "the data set has no prompts", .where = file.string(), .expected = "one JSON object a line"});
  std::vector<std::string> bodies;
  for (size_t i = 0; i < (count > 0 ? count : lines.size()); ++i) {
    const Line& line = lines[i % lines.size()];
    const int64_t drawn = draw(random, output);
    bodies.push_back(request_body(shape, line.key, line.prompt, line.output > 0 ? line.output : drawn));
  }
  return bodies;
}

std::string warmup_request(const RequestShape& shape) {
  const std::string text = "Say something about time, people and the world.";
  return shape.chat ? request_body(shape, "messages", user_message(text), 8) : request_body(shape, "prompt", text, 8);
}

std::string plain_text() {
  std::string text;
  for (const std::string_view word : kWords) text += fmt::format(" {}", word);
  text += " A B C D E F G H I J K L M N O P Q R S T U V W X Y Z a b c d e f g h i j k l m n o p q r s t u v w x y z";
  return text + " 0123456789 , . ; : ! ?";
}

}  // namespace octavo
