// Tables of the GGUF container: type names, and tensor names as hubs spell them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

std::string ggml_type_name(uint32_t id);  // "Q4_K"; "type 77" where the id is unknown
std::string supported_ggml_types();       // "F32, F16, BF16, ..."

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; names without a hub counterpart stay as they are.
std::string gguf_hub_name(std::string_view name);

// Whether `name` is "blk.N." + `part`; then which layer.
bool gguf_layer_tensor(std::string_view name, std::string_view part, int64_t& layer);

}  // namespace octavo
