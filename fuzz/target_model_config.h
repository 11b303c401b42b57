// What the config fuzzer does with an input: reads it as config.json and generation_config.json. A config that is
// accepted must come back the same from what is written for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "checkpoint/model_config.h"

namespace octavo {

inline void fuzz_model_config(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  (void)parse_generation_config(text, "generation_config.json");
  const auto config = parse_model_config(text, "config.json");
  if (!config) return;
  const std::string written = write_model_config(*config);
  const auto back = parse_model_config(written, "config.json");
  OCTAVO_CHECK(back.has_value() && *back == *config, "{}\n{}", back ? "differs" : back.error().message(), written);
  if (config->head_dim <= 1024) (void)inverse_frequencies(*config);
  if (config->num_layers <= 64) (void)config->linear_modules();
  (void)config->context_length();
}

}  // namespace octavo
