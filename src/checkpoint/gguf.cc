#include "checkpoint/gguf.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/gguf_names.h"

namespace octavo {
namespace {

constexpr size_t kMaxArray = size_t{1} << 23, kMaxString = size_t{1} << 26, kMaxTensorName = 63, kMaxDims = 4;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,  // as numbered by the format
};
constexpr size_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // least bytes of a value

// Reads the little-endian stream; a method that returns false left its reason in `problem`.
struct Cursor {
  std::span<const std::byte> bytes;
  size_t at = 0;
  std::string problem;

  bool fault(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  size_t left() const { return bytes.size() - at; }

  template <class T>
  bool read(T& out) {
    if (left() < sizeof(T)) return fault("the file ends early");
    std::memcpy(&out, bytes.data() + at, sizeof(T));
    at += sizeof(T);
    return true;
  }

  bool text(std::string& out) {
    uint64_t size = 0;
    if (!read(size)) return false;
    if (size > left()) return fault("a string reaches past the end of the file");
    if (size > kMaxString) return fault("a string is too long");
    out.assign(reinterpret_cast<const char*>(bytes.data()) + at, size);
    at += size;
    return true;
  }
};

template <class Stored, class Wide>
bool read_as(Cursor& in, Wide& out) {
  Stored value{};
  if (!in.read(value)) return false;
  out = static_cast<Wide>(value);  // NOLINT(bugprone-signed-char-misuse): a number, not a character
  return true;
}

bool read_scalar(Cursor& in, uint32_t type, GgufValue& out) {
  uint64_t u = 0;
  int64_t i = 0;
  double f = 0;
  std::string s;
  bool good = false;
  switch (type) {
    case kU8:
      good = read_as<uint8_t>(in, u), out.value = u;
      break;
    case kU16:
      good = read_as<uint16_t>(in, u), out.value = u;
      break;
    case kU32:
      good = read_as<uint32_t>(in, u), out.value = u;
      break;
    case kU64:
      good = read_as<uint64_t>(in, u), out.value = u;
      break;
    case kI8:
      good = read_as<int8_t>(in, i), out.value = i;
      break;
    case kI16:
      good = read_as<int16_t>(in, i), out.value = i;
      break;
    case kI32:
      good = read_as<int32_t>(in, i), out.value = i;
      break;
    case kI64:
      good = read_as<int64_t>(in, i), out.value = i;
      break;
    case kF32:
      good = read_as<float>(in, f), out.value = f;
      break;
    case kF64:
      good = read_as<double>(in, f), out.value = f;
      break;
    case kBool:
      good = read_as<uint8_t>(in, u);
      if (good && u > 1) return in.fault("a truth value is neither 0 nor 1");
      out.value = u != 0;
      break;
    case kString:
      good = in.text(s), out.value = std::move(s);
      break;
    default:
      return in.fault(fmt::format("unknown value type {}", type));
  }
  return good;
}

bool read_array(Cursor& in, GgufValue& out) {
  uint32_t type = 0;
  uint64_t count = 0;
  if (!in.read(type) || !in.read(count)) return false;
  if (type == kArray) return in.fault("an array of arrays");
  if (type > kF64) return in.fault(fmt::format("unknown value type {}", type));
  if (count > in.left() / kValueBytes[type]) return in.fault("an array reaches past the end of the file");
  if (count > kMaxArray) return in.fault(fmt::format("an array of {} values is too long", count));
  std::vector<std::string> texts;
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  GgufValue item;
  for (uint64_t i = 0; i < count; ++i) {
    if (!read_scalar(in, type, item)) return false;
    if (auto* text = std::get_if<std::string>(&item.value)) texts.push_back(std::move(*text));
    if (const auto* number = std::get_if<double>(&item.value)) numbers.push_back(*number);
    if (const auto* truth = std::get_if<bool>(&item.value)) integers.push_back(*truth ? 1 : 0);
    if (const auto* integer = std::get_if<int64_t>(&item.value)) integers.push_back(*integer);
    if (const auto* whole = std::get_if<uint64_t>(&item.value)) {
      if (*whole > static_cast<uint64_t>(INT64_MAX)) return in.fault("a number in an array is too large");
      integers.push_back(static_cast<int64_t>(*whole));
    }
  }
  if (type == kString)
    out.value = std::move(texts);
  else if (type == kF32 || type == kF64)
    out.value = std::move(numbers);
  else
    out.value = std::move(integers);
  return true;
}

bool read_value(Cursor& in, GgufValue& out) {
  uint32_t type = 0;
  if (!in.read(type)) return false;
  return type == kArray ? read_array(in, out) : read_scalar(in, type, out);
}

}  // namespace

struct Gguf::State {
  explicit State(MappedFile mapped) : file(std::move(mapped)) {}
  MappedFile file;
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<Tensor> tensors;

  Result<void> read();
  Result<void> read_start(Cursor& in, uint64_t& num_tensors, uint64_t& num_values) const;
  Result<void> read_values(Cursor& in, uint64_t count);
  Result<void> read_tensors(Cursor& in, uint64_t count, std::vector<uint64_t>& offsets);
  Result<void> place_tensors(const Cursor& in, const std::vector<uint64_t>& offsets);

  std::string where(std::string_view part = {}) const {
    return part.empty() ? file.path().string() : fmt::format("{}, {}", file.path().string(), part.substr(0, 200));
  }
  Error damaged(const Cursor& in, std::string_view part) const {
    return {.what = "GGUF file is not valid",
            .where = where(part),
            .found = fmt::format("{} (byte {})", in.problem, in.at)};
  }
};

Result<void> Gguf::State::read_start(Cursor& in, uint64_t& num_tensors, uint64_t& num_values) const {
  uint32_t magic = 0, version = 0;
  if (!in.read(magic) || magic != 0x46554747u)
    return fail({.what = "not a GGUF file", .where = where(), .expected = "a file that begins with \"GGUF\""});
  if (!in.read(version)) return fail(damaged(in, "header"));
  if ((version & 0xFFFFu) == 0 && version != 0)
    return fail({.what = "GGUF file is big-endian, which is not supported", .where = where()});
  if (version != 2 && version != 3)
    return fail({.what = "GGUF version is not supported",
                 .where = where(),
                 .found = fmt::format("{}", version),
                 .expected = "2 or 3"});
  if (!in.read(num_tensors) || !in.read(num_values)) return fail(damaged(in, "header"));
  // Each tensor takes at least 24 bytes of directory and each pair 13: counts beyond that are lies.
  if (num_tensors > in.left() / 24 || num_values > in.left() / 13)
    return fail(
        {.what = "GGUF header promises more than the file holds",
         .where = where(),
         .found = fmt::format("{} tensors and {} values in {} bytes", num_tensors, num_values, in.bytes.size())});
  return {};
}

Result<void> Gguf::State::read_values(Cursor& in, uint64_t count) {
  std::string key;
  for (uint64_t i = 0; i < count; ++i) {
    key.clear();
    GgufValue value;
    if (!in.text(key) || (key.empty() && !in.fault("an empty key")) || !read_value(in, value))
      return fail(damaged(in, fmt::format("metadata {}", key)));
    if (!values.try_emplace(key, std::move(value)).second)
      return fail({.what = "GGUF metadata has the same key twice", .where = where(key)});
  }
  return {};
}

Result<void> Gguf::State::read_tensors(Cursor& in, uint64_t count, std::vector<uint64_t>& offsets) {
  std::set<std::string, std::less<>> names;
  for (uint64_t i = 0; i < count; ++i) {
    Tensor& tensor = tensors.emplace_back();
    uint32_t dims = 0;
    uint64_t offset = 0;
    if (!in.text(tensor.name)) return fail(damaged(in, fmt::format("tensor {} of {}", i, count)));
    const std::string part = "tensor " + tensor.name;
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorName)
      return fail({.what = "GGUF tensor name is empty or too long", .where = where(part)});
    if (!names.insert(tensor.name).second)
      return fail({.what = "GGUF file names a tensor twice", .where = where(part)});
    if (!in.read(dims)) return fail(damaged(in, part));
    if (dims > kMaxDims)
      return fail(
          {.what = "GGUF tensor has too many dimensions", .where = where(part), .found = fmt::format("{}", dims)});
    tensor.shape.resize(dims);
    for (uint32_t d = dims; d-- > 0;)
      if (!in.read(tensor.shape[d])) return fail(damaged(in, part));
    if (!in.read(tensor.type) || !in.read(offset)) return fail(damaged(in, part));
    offsets.push_back(offset);
    if (find_ggml_type(tensor.type) == nullptr)
      return fail({.what = "GGUF tensor type is not supported",
                   .where = where(part),
                   .found = ggml_type_name(tensor.type),
                   .expected = supported_ggml_types(),
                   .remedy = "take a file in one of those types (Q8_0 is near lossless)"});
  }
  return {};
}

Result<void> Gguf::State::place_tensors(const Cursor& in, const std::vector<uint64_t>& offsets) {
  uint64_t alignment = 32;
  if (const auto at = values.find("general.alignment"); at != values.end()) {
    const auto* given = std::get_if<uint64_t>(&at->second.value);
    if (given == nullptr || *given == 0 || (*given & (*given - 1)) != 0 || *given > kMaxAlignment)
      return fail({.what = "GGUF alignment is not a power of two", .where = where("general.alignment")});
    alignment = *given;
  }
  const auto padded = [alignment](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
  const uint64_t begin = padded(in.at);
  const uint64_t available = begin <= in.bytes.size() ? in.bytes.size() - begin : 0;
  uint64_t position = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    const GgmlType& type = *find_ggml_type(tensor.type);
    const std::string part = "tensor " + tensor.name;
    uint64_t count = 1;
    bool good = tensor.shape.empty() || tensor.shape.back() % type.block_elements == 0;
    for (const int64_t dim : tensor.shape)
      good =
          good && dim >= 0 && !__builtin_mul_overflow(count, static_cast<uint64_t>(std::max<int64_t>(dim, 1)), &count);
    if (!good || count > static_cast<uint64_t>(INT64_MAX) / 4 || (tensor.shape.empty() && type.block_elements != 1))
      return fail({.what = "GGUF tensor shape is not possible",
                   .where = where(part),
                   .found = fmt::format("{} {}", type.name, shape_text(tensor.shape))});
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) count = 0;
    const uint64_t size = count / static_cast<uint64_t>(type.block_elements) * static_cast<uint64_t>(type.block_bytes);
    if (offsets[i] != position)
      return fail({.what = "GGUF tensor data is not where it should be",
                   .where = where(part),
                   .found = fmt::format("offset {}", offsets[i]),
                   .expected = fmt::format("offset {}", position)});
    if (position > available || size > available - position)
      return fail({.what = "GGUF file is truncated",
                   .where = where(part),
                   .found = fmt::format("{} data bytes", available),
                   .expected = fmt::format("at least {} more than {}", size, position)});
    tensor.data = in.bytes.subspan(std::min<uint64_t>(begin + position, in.bytes.size()), size);
    position = padded(position + size);
  }
  return {};
}

Result<void> Gguf::State::read() {
  Cursor in{.bytes = file.bytes(), .at = 0, .problem = {}};
  uint64_t num_tensors = 0, num_values = 0;
  std::vector<uint64_t> offsets;
  OCTAVO_TRY(read_start(in, num_tensors, num_values));
  OCTAVO_TRY(read_values(in, num_values));
  if (const auto at = values.find("split.count"); at != values.end()) {
    const auto* parts = std::get_if<uint64_t>(&at->second.value);
    if (parts == nullptr || *parts > 1)
      return fail({.what = "GGUF file is one part of several, which is not supported",
                   .where = where("split.count"),
                   .remedy = "merge the parts with llama-gguf-split --merge"});
  }
  OCTAVO_TRY(read_tensors(in, num_tensors, offsets));
  OCTAVO_TRY(place_tensors(in, offsets));
  file.forget(0, in.at);
  return {};
}

Gguf::Gguf() = default;
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;
Gguf::~Gguf() = default;

Result<Gguf> Gguf::open(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(MappedFile file, MappedFile::open(path));
  Gguf gguf;
  gguf.state_ = std::make_unique<State>(std::move(file));
  OCTAVO_TRY(gguf.state_->read());
  return gguf;
}

const GgufValue* Gguf::find(std::string_view key) const {
  const auto at = state_->values.find(key);
  return at == state_->values.end() ? nullptr : &at->second;
}

std::optional<std::string> Gguf::text(std::string_view key) const {
  const GgufValue* found = find(key);
  const auto* text = found == nullptr ? nullptr : std::get_if<std::string>(&found->value);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<int64_t> Gguf::integer(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* truth = std::get_if<bool>(&found->value)) return *truth ? 1 : 0;
  if (const auto* integer = std::get_if<int64_t>(&found->value)) return *integer;
  const auto* whole = std::get_if<uint64_t>(&found->value);
  if (whole == nullptr || *whole > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(*whole);
}

std::optional<double> Gguf::number(std::string_view key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(&found->value)) return *number;
  const auto whole = integer(key);
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

const std::vector<std::string>* Gguf::texts(std::string_view key) const {
  const GgufValue* found = find(key);
  return found == nullptr ? nullptr : std::get_if<std::vector<std::string>>(&found->value);
}

const std::vector<double>* Gguf::numbers(std::string_view key) const {
  const GgufValue* found = find(key);
  return found == nullptr ? nullptr : std::get_if<std::vector<double>>(&found->value);
}

const std::vector<int64_t>* Gguf::integers(std::string_view key) const {
  const GgufValue* found = find(key);
  return found == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(&found->value);
}

const std::filesystem::path& Gguf::path() const {
  return state_->file.path();
}
const std::vector<Gguf::Tensor>& Gguf::tensors() const {
  return state_->tensors;
}

void Gguf::forget(std::span<const std::byte> data) const {
  if (data.empty()) return;
  state_->file.forget(static_cast<size_t>(data.data() - state_->file.bytes().data()), data.size());
}

}  // namespace octavo
