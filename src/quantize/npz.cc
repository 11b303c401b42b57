#include "quantize/npz.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/file.h"

namespace octavo {
namespace {

constexpr uint32_t kLocalHeader = 0x04034B50, kCentralHeader = 0x02014B50, kEnd = 0x06054B50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;

// CRC-32 of zip (polynomial 0xEDB88320).
uint32_t crc32(std::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

template <class T>
T get(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof value; ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<uint8_t>(bytes[at + i])) << (8 * i));
  return value;
}

std::string shape_tuple(const Shape& shape) {
  std::string text = "(";
  for (const int64_t dim : shape) text += fmt::format("{}, ", dim);
  return text + ")";
}

std::string npy_header(const NpzArray& array) {
  const bool is_float = std::holds_alternative<std::vector<float>>(array.values);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", is_float ? "<f4" : "<u8",
                                   shape_tuple(array.shape));
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  put(out, static_cast<uint16_t>(header.size()));
  return out + header;
}

std::string npy(const NpzArray& array) {
  std::string out = npy_header(array);
  std::visit(
      [&](const auto& values) {
        out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
      },
      array.values);
  return out;
}

// The fields that local and central headers share, from "version needed" on.
void put_member(std::string& out, const std::string& name, const std::string& data) {
  put(out, uint16_t{20});
  put(out, uint16_t{0});       // flags
  put(out, uint16_t{0});       // stored
  put(out, uint16_t{0});       // time
  put(out, uint16_t{0x0021});  // date: 1 January 1980
  put(out, crc32(data));
  put(out, static_cast<uint32_t>(data.size()));
  put(out, static_cast<uint32_t>(data.size()));
  put(out, static_cast<uint16_t>(name.size()));
  put(out, uint16_t{0});  // extra field
}

Error damaged(const std::filesystem::path& path, std::string found) {
  return {.what = "statistics file is damaged, or not one that Octavo wrote",
          .where = path.string(),
          .found = std::move(found),
          .expected = "an .npz of '<u8' and '<f4' arrays in C order, not compressed"};
}

// The dimensions of a header's 'shape': (a, b, ).
std::optional<Shape> read_shape(std::string_view header) {
  const size_t begin = header.find("'shape': ("), end = header.find(')', begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  Shape shape;
  int64_t dim = -1;
  for (const char c : header.substr(begin + 10, end - begin - 10)) {
    if (c >= '0' && c <= '9') {
      dim = std::max<int64_t>(dim, 0) * 10 + (c - '0');
      if (dim > int64_t{1} << 32) return std::nullopt;
    } else if (c == ',' && dim >= 0) {
      shape.push_back(dim);
      dim = -1;
    } else if (c != ' ') {
      return std::nullopt;
    }
  }
  if (dim >= 0) shape.push_back(dim);
  return shape;
}

std::optional<NpzArray> read_npy(std::string_view data) {
  if (data.size() < 10 || data.substr(0, 6) != "\x93NUMPY" || data[6] != 1) return std::nullopt;
  const size_t header_bytes = get<uint16_t>(data, 8);
  if (data.size() < 10 + header_bytes) return std::nullopt;
  const std::string_view header = data.substr(10, header_bytes), body = data.substr(10 + header_bytes);
  const auto shape = read_shape(header);
  if (!shape || header.find("'fortran_order': False") == std::string_view::npos) return std::nullopt;
  uint64_t count = 1;
  for (const int64_t dim : *shape)
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count)) return std::nullopt;
  const auto take = [&]<class T>(std::vector<T>) -> std::optional<NpzArray> {
    if (body.size() % sizeof(T) != 0 || body.size() / sizeof(T) != count) return std::nullopt;
    std::vector<T> values(count);
    std::memcpy(values.data(), body.data(), body.size());
    return NpzArray{*shape, std::move(values)};
  };
  if (header.find("'<u8'") != std::string_view::npos) return take(std::vector<uint64_t>{});
  if (header.find("'<f4'") != std::string_view::npos) return take(std::vector<float>{});
  return std::nullopt;
}

}  // namespace

Result<void> write_npz(const std::filesystem::path& path, const NpzFile& arrays) {
  OCTAVO_ASSIGN(AtomicFileWriter writer, AtomicFileWriter::create(path));
  std::string central;
  uint64_t offset = 0;
  for (const auto& [key, array] : arrays) {
    const std::string name = key + ".npy", data = npy(array);
    OCTAVO_CHECK(data.size() < (uint64_t{1} << 32) && offset + data.size() < (uint64_t{1} << 32), "{} of {} bytes", key,
                 data.size());
    std::string local;
    put(local, kLocalHeader);
    put_member(local, name, data);
    local += name;
    OCTAVO_TRY(writer.write(std::as_bytes(std::span(local))));
    OCTAVO_TRY(writer.write(std::as_bytes(std::span(data))));
    put(central, kCentralHeader);
    put(central, uint16_t{20});  // made by
    put_member(central, name, data);
    put(central, uint16_t{0});  // comment
    put(central, uint16_t{0});  // disk
    put(central, uint16_t{0});  // internal attributes
    put(central, uint32_t{0});  // external attributes
    put(central, static_cast<uint32_t>(offset));
    central += name;
    offset += local.size() + data.size();
  }
  std::string end;
  put(end, kEnd);
  put(end, uint32_t{0});  // disks
  put(end, static_cast<uint16_t>(arrays.size()));
  put(end, static_cast<uint16_t>(arrays.size()));
  put(end, static_cast<uint32_t>(central.size()));
  put(end, static_cast<uint32_t>(offset));
  put(end, uint16_t{0});  // comment
  central += end;
  OCTAVO_TRY(writer.write(std::as_bytes(std::span(central))));
  return writer.commit();
}

Result<NpzFile> read_npz(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const std::string text, read_text_file(path));
  const std::string_view file = text;
  if (file.size() < kEndBytes || get<uint32_t>(file, file.size() - kEndBytes) != kEnd)
    return fail(damaged(path, "no directory at its end"));
  const std::string_view end = file.substr(file.size() - kEndBytes);
  const size_t members = get<uint16_t>(end, 10);
  size_t at = get<uint32_t>(end, 16);
  NpzFile arrays;
  for (size_t i = 0; i < members; ++i) {
    if (at > file.size() || file.size() - at < kCentralBytes || get<uint32_t>(file, at) != kCentralHeader)
      return fail(damaged(path, fmt::format("directory entry {} is cut", i)));
    const size_t name_bytes = get<uint16_t>(file, at + 28), size = get<uint32_t>(file, at + 24);
    const size_t local = get<uint32_t>(file, at + 42);
    if (file.size() - at - kCentralBytes < name_bytes) return fail(damaged(path, "a name is cut"));
    const std::string name(file.substr(at + kCentralBytes, name_bytes));
    const size_t skip = size_t{get<uint16_t>(file, at + 30)} + get<uint16_t>(file, at + 32);
    if (local > file.size() || file.size() - local < kLocalBytes || get<uint16_t>(file, at + 10) != 0)
      return fail(damaged(path, name));
    const size_t data_at = local + kLocalBytes + get<uint16_t>(file, local + 26) + get<uint16_t>(file, local + 28);
    if (data_at > file.size() || file.size() - data_at < size || !name.ends_with(".npy"))
      return fail(damaged(path, name));
    if (file.substr(local + kLocalBytes, get<uint16_t>(file, local + 26)) != name) return fail(damaged(path, name));
    auto array = read_npy(file.substr(data_at, size));
    if (!array || crc32(file.substr(data_at, size)) != get<uint32_t>(file, at + 16)) return fail(damaged(path, name));
    arrays[name.substr(0, name.size() - 4)] = std::move(*array);
    at += kCentralBytes + name_bytes + skip;
  }
  return arrays;
}

}  // namespace octavo
