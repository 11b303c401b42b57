#include "evaluate/answers.h"

#include <algorithm>
#include <cmath>

#include "evaluate/answer_prompts.h"
#include "evaluate/item_log.h"
#include "evaluate/model_facts.h"
#include "evaluate/section_log.h"
#include "evaluate/tasks/fields.h"
#include "evaluate/tasks/task.h"

namespace octavo {
namespace {

Result<std::vector<TokenId>> tokens_of(const Model& model, const Json& line, const std::string& where) {
  if (has_field(line, "messages")) {
    OCTAVO_ASSIGN(const std::string text, model.render_chat(line["messages"]));
    return model.tokenizer().encode(text, false);
  }
  if (!has_field(line, "tokens")) {
    OCTAVO_ASSIGN(const std::string text, text_field(line, "prompt", where));
    return model.tokenizer().encode(text, true);
  }
  std::vector<TokenId> tokens;
  if (!line["tokens"].is_array()) return fail({.what = "\"tokens\" is not a list", .where = where});
  for (const Json& id : line["tokens"]) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= model.config().vocab_size)
      return fail({.what = "token id outside the vocabulary", .where = where, .found = id.dump()});
    tokens.push_back(id.get<TokenId>());
  }
  return tokens;
}

Json answer_record(const AnswerPrompt& prompt, const GeneratedAnswer& answer) {
  Json record = {{"id", prompt.id}, {"prompt_tokens", prompt.tokens.size()}};
  if (!answer.error.empty()) {
    record["error"] = answer.error;
    return record;
  }
  record["text"] = answer.text;
  record["tokens"] = answer.tokens;
  Json logprobs = Json::array();
  for (const float value : answer.logprobs) logprobs.push_back(std::round(value * 1e5) / 1e5);
  record["logprobs"] = std::move(logprobs);
  record["finish_reason"] = answer.finish_reason;
  return record;
}

}  // namespace

std::string prompts_hash(const std::vector<AnswerPrompt>& prompts) {
  std::vector<std::string> texts;
  for (const AnswerPrompt& prompt : prompts) {
    texts.push_back(prompt.id);
    for (const TokenId id : prompt.tokens) texts.push_back(fmt::format("{}", id));
  }
  return text_hash(texts);
}

Result<std::vector<AnswerPrompt>> read_prompts(const Model& model, const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const std::vector<Json> lines, read_jsonl(path));
  std::vector<AnswerPrompt> prompts;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}, item {}", path.string(), i);
    AnswerPrompt prompt{.id = id_field(lines[i])};
    if (prompt.id.empty()) prompt.id = fmt::format("{}", i);
    OCTAVO_ASSIGN(prompt.tokens, tokens_of(model, lines[i], where));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<AnswerPrompt> boundary_prompts(const Model& model) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto encode = [&](std::string_view text) { return tokenizer.encode(text, false, false); };
  const auto context = static_cast<size_t>(model.config().context_length());
  const auto last = static_cast<TokenId>(model.config().vocab_size - 1);
  std::vector<TokenId> letter = encode("A"), special, longest(context - 1);
  letter.resize(1);
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id)
    if (tokenizer.is_special(id)) special.push_back(id);
  const std::vector<TokenId> line = encode("The quick brown fox jumps over the lazy dog. ");
  for (size_t i = 0; i < longest.size(); ++i) longest[i] = line[i % line.size()];
  std::vector<TokenId> too_long = longest;
  too_long.resize(context + 1, letter[0]);
  std::vector<AnswerPrompt> prompts = {
      {"empty", {}},
      {"one token", letter},
      {"repeated token", std::vector<TokenId>(std::min<size_t>(512, context / 2), letter[0])},
      {"white space", encode(" \n\t\r\n  ")},
      {"unusual unicode", encode("\u200B\u202E\uFEFF\u0301e\u0301 \U0001F3F3\uFE0F\u200D\U0001F308 \uFDFD \U00010348 "
                                 "\uFFFD\uFFFF \xC0\x80 \xED\xA0\x80 \xFF")},
      {"first and last id", {0, last}},
      {"longest context", longest},
      {"longer than the context", too_long}};
  if (!special.empty()) prompts.push_back({"special tokens", special});  // a tokenizer may have none
  return prompts;
}

Result<std::vector<Json>> write_answers(Model& model, const std::vector<AnswerPrompt>& prompts, int64_t max_tokens,
                                        const std::function<void(int64_t, int64_t)>& progress, SectionLog* log) {
  std::vector<Json> lines(prompts.size() + 1);
  lines[0] = {{"octavo", "answers"},           {"prompts", prompts_hash(prompts)},
              {"max_tokens", max_tokens},      {"model", model.checkpoint().path().string()},
              {"scheme", model.plan().scheme}, {"kv", kv_cache_name(model.plan())},
              {"isa", isa_name(model.isa())}};
  const auto name = [](size_t i) { return fmt::format("answer {}", i); };
  std::vector<GenerationRequest> requests;
  std::vector<size_t> open;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (const Json* found = log == nullptr ? nullptr : log->find(name(i))) {
      if (id_field(*found) != prompts[i].id) return fail(log->refuse(name(i)));
      lines[i + 1] = *found;
      continue;
    }
    open.push_back(i);
    requests.push_back({.prompt = prompts[i].tokens, .max_tokens = max_tokens, .num_logprobs = 0});
  }
  auto done = static_cast<int64_t>(prompts.size() - open.size());
  const auto answered = [&](size_t request, const GeneratedAnswer& answer) -> Result<void> {
    const size_t i = open[request];
    lines[i + 1] = answer_record(prompts[i], answer);
    if (log != nullptr) OCTAVO_TRY(log->keep(name(i), lines[i + 1]));
    if (progress) progress(++done, static_cast<int64_t>(prompts.size()));
    return {};
  };
  OCTAVO_TRY(answer_prompts(model, std::move(requests), answered));
  return lines;
}

namespace {

std::string shown(const Json& record) {
  if (record.contains("error")) return "refused: " + id_field(record, "error");
  return id_field(record, "text");
}

Result<AnswerDifference> difference(const Json& base, const Json& answer) {
  AnswerDifference out;
  const auto list = [](const Json& record, const char* key) {
    return record.contains(key) ? record[key] : Json::array();
  };
  const Json base_tokens = list(base, "tokens"), tokens = list(answer, "tokens");
  const Json base_logprobs = list(base, "logprobs"), logprobs = list(answer, "logprobs");
  const auto numbers = [](const Json& values) {
    return values.is_array() && std::all_of(values.begin(), values.end(), [](const Json& v) { return v.is_number(); });
  };
  for (const Json* values : {&base_tokens, &tokens, &base_logprobs, &logprobs})
    if (!numbers(*values))
      return fail({.what = "an answer's tokens or logprobs are not numbers", .found = base.dump()});
  out.id = id_field(answer);
  out.base_tokens = static_cast<int64_t>(base_tokens.size());
  out.tokens = static_cast<int64_t>(tokens.size());
  const size_t shorter = std::min(base_tokens.size(), tokens.size());
  size_t common = 0;
  for (; common < shorter && base_tokens[common] == tokens[common]; ++common)
    if (common < base_logprobs.size() && common < logprobs.size())
      out.largest_logprob_change = std::max(
          out.largest_logprob_change, std::fabs(base_logprobs[common].get<double>() - logprobs[common].get<double>()));
  out.common = static_cast<int64_t>(common);
  out.same = base_tokens == tokens && base.contains("error") == answer.contains("error");
  out.base_text = shown(base);
  out.text = shown(answer);
  return out;
}

}  // namespace

Result<std::vector<AnswerDifference>> compare_answers(const std::vector<Json>& base, const std::vector<Json>& answers) {
  OCTAVO_CHECK(!answers.empty(), "answers without settings");
  for (const char* key : {"octavo", "prompts", "max_tokens"})
    if (base.empty() || !base[0].contains(key) || base[0][key] != answers[0][key])
      return fail({.what = fmt::format("the answers are to other prompts: \"{}\" differs", key),
                   .where = "--diff",
                   .found = base.empty() || !base[0].contains(key) ? "" : base[0][key].dump(),
                   .expected = answers[0][key].dump(),
                   .remedy = "write them anew with --out"});
  if (base.size() != answers.size())
    return fail({.what = "the file of answers is not whole",
                 .where = "--diff",
                 .found = fmt::format("{} answers", base.size() - 1),
                 .expected = fmt::format("{}", answers.size() - 1)});
  std::vector<AnswerDifference> out;
  for (size_t i = 1; i < base.size(); ++i) {
    OCTAVO_ASSIGN(AnswerDifference row, difference(base[i], answers[i]));
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace octavo
