// The page at "/": a chat with the model, compiled into the binary from index.html.
#pragma once

#include <string_view>

namespace octavo {

std::string_view built_in_page();

}  // namespace octavo
