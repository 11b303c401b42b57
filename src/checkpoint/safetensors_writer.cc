#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

// Order of the data by type: widest first, so that every tensor is aligned to its element where it lies.
constexpr ElementType kOrder[] = {
    ElementType::kUint64, ElementType::kInt64, ElementType::kF64,  ElementType::kF32,    ElementType::kUint32,
    ElementType::kInt32,  ElementType::kBf16,  ElementType::kF16,  ElementType::kUint16, ElementType::kInt16,
    ElementType::kE8m0,   ElementType::kE4m3,  ElementType::kE5m2, ElementType::kInt8,   ElementType::kUint8,
    ElementType::kE2m1,   ElementType::kBool,
};

size_t rank_of(ElementType element) {
  return static_cast<size_t>(std::find(std::begin(kOrder), std::end(kOrder), element) - std::begin(kOrder));
}

std::optional<uint64_t> byte_size(const TensorToWrite& tensor) {
  uint64_t bits = static_cast<uint64_t>(element_bits(tensor.element));
  for (const int64_t dim : tensor.shape)
    if (dim < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits)) return std::nullopt;
  if (bits % 8 != 0 || bits / 8 > INT64_MAX / 2) return std::nullopt;
  return bits / 8;
}

std::string header_text(const std::vector<TensorToWrite>& tensors, const std::vector<uint64_t>& ends,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + Json(metadata).dump();
  uint64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string shape;
    for (const int64_t dim : tensors[i].shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", dim);
    text +=
        fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "",
                    Json(tensors[i].name).dump(), element_info(tensors[i].element).safetensors, shape, begin, ends[i]);
    begin = ends[i];
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

struct SafetensorsWriter::State {
  struct Place {
    uint64_t begin = 0, size = 0;          // in the file
    std::map<uint64_t, uint64_t> written;  // begin -> end, merged, within the tensor
  };
  State(AtomicFileWriter writer, std::filesystem::path target) : file(std::move(writer)), path(std::move(target)) {}

  AtomicFileWriter file;
  std::filesystem::path path;
  std::map<std::string, Place, std::less<>> places;
  std::mutex mutex;

  Error error(std::string what, std::string_view tensor, std::string found) const {
    return {.what = std::move(what),
            .where = fmt::format("{}, tensor {}", path.string(), tensor),
            .found = std::move(found)};
  }
};

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<TensorToWrite> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const size_t x = rank_of(a.element), y = rank_of(b.element);
    return x != y ? x < y : a.name < b.name;
  });
  OCTAVO_ASSIGN(AtomicFileWriter file, AtomicFileWriter::create(path));
  auto state = std::make_unique<State>(std::move(file), path);
  std::vector<uint64_t> ends;
  uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const auto size = byte_size(tensor);
    if (!size || element_info(tensor.element).safetensors.empty())
      return fail(state->error("tensor cannot be written to a safetensors file", tensor.name,
                               fmt::format("{} {}", element_name(tensor.element), shape_text(tensor.shape))));
    if (!state->places.try_emplace(tensor.name, State::Place{.begin = end, .size = *size, .written = {}}).second ||
        tensor.name == "__metadata__")
      return fail(state->error("tensor name is reserved or used twice", tensor.name, ""));
    end += *size;
    ends.push_back(end);
  }
  std::string header;
  try {
    header = header_text(tensors, ends, metadata);
  } catch (const Json::exception& error) {  // a name that is not UTF-8
    return fail({.what = "tensor name or metadata is not UTF-8", .where = path.string(), .found = error.what()});
  }
  if (header.size() > kMaxSafetensorsHeader)
    return fail({.what = "safetensors header would be too long",
                 .where = path.string(),
                 .found = fmt::format("{} bytes for {} tensors", header.size(), tensors.size()),
                 .expected = fmt::format("at most {} bytes", kMaxSafetensorsHeader)});
  const uint64_t length = header.size();
  OCTAVO_TRY(state->file.write(std::as_bytes(std::span(&length, 1))));
  OCTAVO_TRY(state->file.write(std::as_bytes(std::span(header))));
  for (auto& [name, place] : state->places) place.begin += 8 + length;
  SafetensorsWriter writer;
  writer.state_ = std::move(state);
  return writer;
}

Result<void> SafetensorsWriter::write(std::string_view name, size_t offset, std::span<const std::byte> bytes) {
  uint64_t position = 0;
  {
    const std::lock_guard lock(state_->mutex);
    const auto at = state_->places.find(name);
    OCTAVO_CHECK(at != state_->places.end(), "tensor {} was not announced", name);
    State::Place& place = at->second;
    OCTAVO_CHECK(offset <= place.size && bytes.size() <= place.size - offset, "bytes [{}, +{}) of {}, which has {}",
                 offset, bytes.size(), name, place.size);
    if (bytes.empty()) return {};
    position = place.begin + offset;
    uint64_t begin = offset, end = offset + bytes.size();
    auto next = place.written.lower_bound(begin);
    OCTAVO_CHECK(next == place.written.end() || next->first >= end, "bytes of {} written twice", name);
    if (next != place.written.end() && next->first == end) {
      end = next->second;
      next = place.written.erase(next);
    }
    if (next != place.written.begin()) {
      const auto previous = std::prev(next);
      OCTAVO_CHECK(previous->second <= begin, "bytes of {} written twice", name);
      if (previous->second == begin) begin = previous->first;
    }
    place.written[begin] = end;
  }
  return state_->file.write_at(position, bytes);
}

Result<void> SafetensorsWriter::commit() {
  for (const auto& [name, place] : state_->places) {
    const bool whole = place.size == 0 || (place.written.size() == 1 && place.written.begin()->first == 0 &&
                                           place.written.begin()->second == place.size);
    if (!whole)
      return fail(state_->error("tensor was not written completely", name, fmt::format("of {} bytes", place.size)));
  }
  return state_->file.commit();
}

}  // namespace octavo
