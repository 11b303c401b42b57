// Arrays by name in one .npz file, as numpy writes and reads them: a zip archive of .npy members, not compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "formats/tensor.h"

namespace octavo {

struct NpzArray {
  Shape shape;
  std::variant<std::vector<uint64_t>, std::vector<float>> values;  // '<u8' or '<f4', C order
};
using NpzFile = std::map<std::string, NpzArray>;

// The file appears complete, or not at all. At most 4 GB: the plain zip format's limit.
Result<void> write_npz(const std::filesystem::path& path, const NpzFile& arrays);
// Reads what write_npz wrote: other types, orders and compression are an error that names the member.
Result<NpzFile> read_npz(const std::filesystem::path& path);

}  // namespace octavo
