// The places where linear layers read. Each is the input of one LinearGroup.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "precision/plan.h"

namespace octavo {

// What a layer has: four inputs, and where it has experts a router, which reads what their gate and up read. The head
// (layer -1) has one.
enum class LinearInput : uint8_t { kQkv, kO, kGateUp, kDown, kRouter, kHead };
std::span<const Role> roles_of(LinearInput input);
LinearInput input_of(Role role);

struct LinearPlace {
  int layer = -1;
  LinearInput input = LinearInput::kHead;
  int expert = -1;  // gate_up and down of an expert; -1: of no expert

  auto operator<=>(const LinearPlace&) const = default;
};
LinearPlace place_of(const LinearModule& module);

// The places of a layer, in order of use; of the head for layer -1.
std::vector<LinearPlace> layer_places(const ModelConfig& config, int layer);
int64_t input_cols(const ModelConfig& config, const LinearPlace& place);

}  // namespace octavo
