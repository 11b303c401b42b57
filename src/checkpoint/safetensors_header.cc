// The header of a safetensors file: parsed and checked in the order of the reference implementation.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_json.h"

namespace octavo {
namespace {

struct Dtype {
  std::string_view name;
  uint64_t bits;
};
constexpr Dtype kDtypes[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                             {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                             {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                             {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                             {"I64", 64},        {"U64", 64}};

constexpr size_t kMaxDims = 16;

const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes)
    if (dtype.name == name) return &dtype;
  return nullptr;
}

bool scan_shape(JsonScanner& json, Shape& shape) {
  if (!json.open('[')) return false;
  shape.clear();
  while (true) {
    bool more = false;
    uint64_t dim = 0;
    if (!json.next(']', more)) return false;
    if (!more) return true;
    if (!json.unsigned_integer(dim)) return false;
    if (dim > INT64_MAX) return json.fail("dimension is too large");
    if (shape.size() == kMaxDims) return json.fail("tensor has too many dimensions");
    shape.push_back(static_cast<int64_t>(dim));
  }
}

bool scan_offsets(JsonScanner& json, SafetensorsHeader::Tensor& tensor) {
  bool more = false;
  for (uint64_t* offset : {&tensor.begin, &tensor.end}) {
    if (offset == &tensor.begin && !json.open('[')) return false;
    if (!json.next(']', more)) return false;
    if (!more) return json.fail("data_offsets must hold two numbers");
    if (!json.unsigned_integer(*offset)) return false;
  }
  return json.next(']', more) && (!more || json.fail("data_offsets must hold two numbers"));
}

bool scan_tensor(JsonScanner& json, SafetensorsHeader::Tensor& tensor, std::string& text) {
  bool dtype = false, shape = false, offsets = false, more = true;
  if (!json.open('{')) return false;
  while (true) {
    if (!json.next('}', more)) return false;
    if (!more) break;
    if (!json.key(text)) return false;
    if (text == "dtype" && !dtype) {
      dtype = true;
      if (!json.string(text)) return false;
      const Dtype* found = find_dtype(text);
      if (found == nullptr) return json.fail("unknown dtype '" + text.substr(0, 40) + "'");
      tensor.dtype = found->name;
      tensor.element = element_from_safetensors(found->name);
    } else if (text == "shape" && !shape) {
      shape = true;
      if (!scan_shape(json, tensor.shape)) return false;
    } else if (text == "data_offsets" && !offsets) {
      offsets = true;
      if (!scan_offsets(json, tensor)) return false;
    } else {
      return json.fail("unexpected key '" + text.substr(0, 40) + "'");
    }
  }
  return (dtype && shape && offsets) || json.fail("dtype, shape or data_offsets is missing");
}

bool scan_metadata(JsonScanner& json, std::map<std::string, std::string>& metadata) {
  if (!json.open('{')) return false;
  std::string key, value;
  while (true) {
    bool more = false;
    if (!json.next('}', more)) return false;
    if (!more) return true;
    if (!json.key(key) || !json.string(value)) return false;
    if (!metadata.emplace(key, value).second) return json.fail("__metadata__ holds the same key twice");
  }
}

// `current` is the tensor being read, for the error.
bool scan_header(JsonScanner& json, SafetensorsHeader& header, std::string& current) {
  if (!json.open('{')) return false;
  bool metadata = false;
  std::string text;
  while (true) {
    bool more = false;
    current.clear();
    if (!json.next('}', more)) return false;
    if (!more) return json.end();
    if (!json.key(current)) return false;
    if (current == "__metadata__") {
      if (metadata) return json.fail("__metadata__ appears twice");
      metadata = true;
      if (!scan_metadata(json, header.metadata)) return false;
      continue;
    }
    if (header.tensors.size() == kMaxSafetensorsTensors)
      return json.fail(fmt::format("more than {} tensors in one file; shards may hold them", kMaxSafetensorsTensors));
    SafetensorsHeader::Tensor& tensor = header.tensors.emplace_back();
    if (!scan_tensor(json, tensor, text)) return false;
    tensor.name = current;
  }
}

std::string place(std::string_view file, std::string_view tensor) {
  if (tensor.empty()) return std::string(file);
  return fmt::format("{}, tensor {}", file, tensor.substr(0, 200));
}

// Bytes the shape and type ask for; nothing where they overflow or are not whole bytes.
std::optional<uint64_t> tensor_bytes(const SafetensorsHeader::Tensor& tensor) {
  uint64_t bits = find_dtype(tensor.dtype)->bits;
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  uint64_t count = 1;
  for (const int64_t dim : tensor.shape) {
    // A zero elsewhere does not excuse a product that overflows: readers multiply in any order.
    if (empty && dim == 0) continue;
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, bits, &bits) || bits / 8 > INT64_MAX / 8) return std::nullopt;
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

// The ranges in order of (begin, end) must tile the data.
Result<void> check_layout(const SafetensorsHeader& header, uint64_t data_size, std::string_view where) {
  std::vector<uint32_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) {
    const auto &x = header.tensors[a], &y = header.tensors[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  uint64_t position = 0;
  for (const uint32_t i : order) {
    const auto& tensor = header.tensors[i];
    if (tensor.end < tensor.begin || tensor.begin != position)
      return fail({.what = tensor.end < tensor.begin ? "safetensors range ends before it begins"
                           : tensor.begin > position ? "safetensors data has a hole"
                                                     : "safetensors ranges overlap",
                   .where = place(where, tensor.name),
                   .found = fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end),
                   .expected = fmt::format("data that begins at {}", position)});
    const auto bytes = tensor_bytes(tensor);
    if (!bytes || *bytes != tensor.end - tensor.begin)
      return fail({.what = "safetensors shape does not fit its data",
                   .where = place(where, tensor.name),
                   .found = fmt::format("{} bytes for {} {}", tensor.end - tensor.begin, tensor.dtype,
                                        shape_text(tensor.shape)),
                   .expected = bytes ? fmt::format("{} bytes", *bytes) : "a size that whole bytes can hold"});
    position = tensor.end;
  }
  if (position != data_size)
    return fail({.what = position > data_size ? "safetensors file is truncated"
                                              : "safetensors file has bytes that no tensor owns",
                 .where = std::string(where),
                 .found = fmt::format("{} data bytes", data_size),
                 .expected = fmt::format("{} data bytes", position)});
  return {};
}

// Sorts by name, unless the file is in that order already, and finds names that appear twice.
Result<void> sort_by_name(SafetensorsHeader& header, std::string_view where) {
  auto& tensors = header.tensors;
  if (!std::is_sorted(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; })) {
    std::vector<uint32_t> order(tensors.size());  // moving numbers is cheaper than moving tensors
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
    std::vector<SafetensorsHeader::Tensor> sorted;
    sorted.reserve(tensors.size());
    for (const uint32_t i : order) sorted.push_back(std::move(tensors[i]));
    tensors = std::move(sorted);
  }
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors.end())
    return fail({.what = "safetensors header names a tensor twice", .where = place(where, twice->name)});
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  if (file.size() < 8)
    return fail({.what = "not a safetensors file: too short",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", file.size()),
                 .expected = "at least 8 bytes"});
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxSafetensorsHeader)
    return fail({.what = "safetensors header is too long (or this is not a safetensors file)",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", length),
                 .expected = fmt::format("at most {} bytes", kMaxSafetensorsHeader)});
  if (length > file.size() - 8)
    return fail({.what = "safetensors file is truncated inside its header",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", file.size()),
                 .expected = fmt::format("at least {} bytes", length + 8)});
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (text.empty() || text.front() != '{')
    return fail({.what = "safetensors header does not begin with '{'", .where = std::string(where)});
  SafetensorsHeader header;
  JsonScanner json(text);
  std::string current;
  if (!scan_header(json, header, current))
    return fail({.what = "safetensors header is not valid",
                 .where = place(where, current),
                 .found = fmt::format("{} (byte {} of the header)", json.error(), json.position())});
  const uint64_t data_size = file.size() - 8 - length;
  OCTAVO_TRY(check_layout(header, data_size, where));
  for (auto& tensor : header.tensors) {
    tensor.begin += 8 + length;
    tensor.end += 8 + length;
  }
  OCTAVO_TRY(sort_by_name(header, where));
  return header;
}

}  // namespace octavo
