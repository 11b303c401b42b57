#include "models/layers/linear_place.h"

#include <algorithm>

namespace octavo {

std::span<const Role> roles_of(LinearInput input) {
  static constexpr Role kRoles[] = {Role::kQ,  Role::kK,    Role::kV,      Role::kO,   Role::kGate,
                                    Role::kUp, Role::kDown, Role::kRouter, Role::kHead};
  const std::span<const Role> roles = kRoles;
  switch (input) {
    case LinearInput::kQkv:
      return roles.subspan(0, 3);
    case LinearInput::kO:
      return roles.subspan(3, 1);
    case LinearInput::kGateUp:
      return roles.subspan(4, 2);
    case LinearInput::kDown:
      return roles.subspan(6, 1);
    case LinearInput::kRouter:
      return roles.subspan(7, 1);
    case LinearInput::kHead:
      return roles.subspan(8, 1);
  }
  return {};
}

LinearInput input_of(Role role) {
  for (const LinearInput input :
       {LinearInput::kQkv, LinearInput::kO, LinearInput::kGateUp, LinearInput::kDown, LinearInput::kRouter}) {
    const std::span<const Role> roles = roles_of(input);
    if (std::find(roles.begin(), roles.end(), role) != roles.end()) return input;
  }
  return LinearInput::kHead;
}

LinearPlace place_of(const LinearModule& module) {
  return {module.layer, input_of(module.role), module.expert};
}

std::vector<LinearPlace> layer_places(const ModelConfig& config, int layer) {
  if (layer < 0) return {{layer, LinearInput::kHead}};
  std::vector<LinearPlace> places = {{layer, LinearInput::kQkv}, {layer, LinearInput::kO}};
  const bool sparse = config.has_experts(layer);
  if (sparse) places.push_back({layer, LinearInput::kRouter});
  const int experts = sparse ? static_cast<int>(config.experts->count) : 1;
  for (const LinearInput input : {LinearInput::kGateUp, LinearInput::kDown})
    for (int expert = 0; expert < experts; ++expert) places.push_back({layer, input, sparse ? expert : -1});
  return places;
}

int64_t input_cols(const ModelConfig& config, const LinearPlace& place) {
  switch (place.input) {
    case LinearInput::kO:
      return config.q_size();
    case LinearInput::kDown:
      return place.expert < 0 ? config.intermediate_size : config.experts->intermediate_size;
    default:
      return config.hidden_size;
  }
}

}  // namespace octavo
