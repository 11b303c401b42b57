// Finding the chat template and special tokens of model folders and GGUF files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/test_folder.h"
#include "text/chat_template.h"

namespace octavo {
namespace {

class ChatFormatTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  ChatFormat read() {
    auto format = read_chat_format(folder_.path());
    EXPECT_TRUE(format) << format.error().message();
    return format ? *format : ChatFormat{};
  }
  std::string error() {
    const auto format = read_chat_format(folder_.path());
    return format ? "no error" : format.error().message();
  }
  TestFolder folder_;
};

TEST_F(ChatFormatTest, FolderWithoutAnythingHasNoTemplate) {
  EXPECT_EQ(read().template_source, "");
  EXPECT_EQ(read().bos_token, "");
}

TEST_F(ChatFormatTest, TokenizerConfigGivesTemplateAndTokens) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
            "pad_token": null})");
  const ChatFormat format = read();
  EXPECT_EQ(format.template_source, "{{ bos_token }}");
  EXPECT_EQ(format.bos_token, "<s>");
  EXPECT_EQ(format.eos_token, "</s>");
  EXPECT_EQ(format.pad_token, "");
  EXPECT_EQ(format.unk_token, "");
}

TEST_F(ChatFormatTest, TemplateFileComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "old", "eos_token": "</s>"})");
  write("chat_template.jinja", "new\n");
  EXPECT_EQ(read().template_source, "new\n");
  EXPECT_EQ(read().eos_token, "</s>");
}

TEST_F(ChatFormatTest, DefaultIsChosenFromAList) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})");
  EXPECT_EQ(read().template_source, "b");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "a"}]})");
  EXPECT_NE(error().find("rag"), std::string::npos) << error();
}

TEST_F(ChatFormatTest, WrongTypesAreErrors) {
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_NE(error().find("chat_template"), std::string::npos) << error();
  write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_NE(error().find("eos_token"), std::string::npos) << error();
  write("tokenizer_config.json", R"({"eos_token": {"text": "x"}})");
  EXPECT_NE(error().find("eos_token"), std::string::npos) << error();
  write("tokenizer_config.json", "[]");
  EXPECT_NE(error().find("not a JSON object"), std::string::npos) << error();
  write("tokenizer_config.json", "{");
  EXPECT_NE(error().find("not valid JSON"), std::string::npos) << error();
  EXPECT_FALSE(read_chat_format(folder_ / "missing"));
}

// A GGUF file with metadata only.
class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) {
    start(key, 8);
    string(value);
  }
  void id(const std::string& key, uint32_t value) {
    start(key, 4);
    raw(value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    start(key, 9);
    raw(uint32_t{8});
    raw(uint64_t{values.size()});
    for (const std::string& value : values) string(value);
  }
  std::string bytes() const {
    GgufWriter header;
    header.body_ = "GGUF";
    header.raw(uint32_t{3});
    header.raw(uint64_t{0});
    header.raw(count_);
    return header.body_ + body_;
  }

 private:
  void start(const std::string& key, uint32_t type) {
    ++count_;
    string(key);
    raw(type);
  }
  void string(const std::string& value) {
    raw(uint64_t{value.size()});
    body_ += value;
  }
  template <class T>
  void raw(T value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string body_;
  uint64_t count_ = 0;
};

TEST_F(ChatFormatTest, GgufGivesTemplateAndTokens) {
  GgufWriter gguf;
  gguf.text("general.architecture", "llama");
  gguf.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>"});
  gguf.id("tokenizer.ggml.bos_token_id", 1);
  gguf.id("tokenizer.ggml.eos_token_id", 2);
  gguf.id("tokenizer.ggml.padding_token_id", 2);
  gguf.id("tokenizer.ggml.unknown_token_id", 0);
  gguf.text("tokenizer.chat_template", "{{ eos_token }}");
  write("model.gguf", gguf.bytes());
  const auto format = read_chat_format(folder_ / "model.gguf");
  ASSERT_TRUE(format) << format.error().message();
  EXPECT_EQ(format->template_source, "{{ eos_token }}");
  EXPECT_EQ(format->bos_token, "<s>");
  EXPECT_EQ(format->eos_token, "</s>");
  EXPECT_EQ(format->pad_token, "</s>");
  EXPECT_EQ(format->unk_token, "<unk>");
}

TEST_F(ChatFormatTest, GgufTokenOutsideOfTheVocabularyIsAnError) {
  GgufWriter gguf;
  gguf.text("general.architecture", "llama");
  gguf.texts("tokenizer.ggml.tokens", {"a"});
  gguf.id("tokenizer.ggml.eos_token_id", 7);
  write("model.gguf", gguf.bytes());
  const auto format = read_chat_format(folder_ / "model.gguf");
  ASSERT_FALSE(format);
  EXPECT_NE(format.error().message().find("outside of the vocabulary"), std::string::npos);
}

}  // namespace
}  // namespace octavo
