#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/safetensors_json.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

class SafetensorsReader final : public TensorReader {
 public:
  // Adds the tensors of a file. `index` (may be null) says which of them live here.
  Result<void> add_file(const std::filesystem::path& folder, const std::string& name,
                        const std::map<std::string, std::string>* index);
  // Sorts, and finds tensors that two files hold.
  Result<void> finish(const std::filesystem::path& folder);

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  Result<void> read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const override;
  void forget(const TensorEntry& entry, int64_t begin, int64_t end) const override;

 private:
  std::vector<MappedFile> files_;
  std::vector<TensorEntry> entries_;
};

Result<void> SafetensorsReader::add_file(const std::filesystem::path& folder, const std::string& name,
                                         const std::map<std::string, std::string>* index) {
  const std::filesystem::path path = folder / name;
  OCTAVO_ASSIGN(MappedFile file, MappedFile::open(path));
  OCTAVO_ASSIGN(SafetensorsHeader header, parse_safetensors(file.bytes(), path.string()));
  file.forget(0, file.bytes().size());  // the header's text is not read again
  entries_.reserve(entries_.size() + header.tensors.size());
  for (auto& tensor : header.tensors) {
    if (index != nullptr) {
      const auto home = index->find(tensor.name);
      if (home != index->end() && home->second != name) continue;  // the index takes it from another shard
    }
    TensorEntry& entry = entries_.emplace_back();
    const auto data = file.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
    if (tensor.element) entry.plain = TensorView{*tensor.element, tensor.shape, data};
    entry.name = std::move(tensor.name);
    entry.shape = std::move(tensor.shape);
    entry.stored_type = tensor.dtype;
    entry.stored_bytes = static_cast<int64_t>(data.size());
    entry.file = name;
  }
  files_.push_back(std::move(file));
  return {};
}

Result<void> SafetensorsReader::finish(const std::filesystem::path& folder) {
  const auto before = [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; };
  if (!std::is_sorted(entries_.begin(), entries_.end(), before)) std::sort(entries_.begin(), entries_.end(), before);
  const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != entries_.end())
    return fail({.what = "two shards hold the same tensor",
                 .where = fmt::format("{}, tensor {}", folder.string(), twice->name),
                 .found = fmt::format("{} and {}", twice->file.string(), (twice + 1)->file.string()),
                 .remedy = "name the right shard in the weight_map of the index"});
  return {};
}

const TensorEntry* SafetensorsReader::find(std::string_view name) const {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const TensorEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

Result<void> SafetensorsReader::read_f32(const TensorEntry& entry, int64_t begin, int64_t end,
                                         std::span<float> out) const {
  if (!entry.plain)
    return fail({.what = "tensor has a type that Octavo does not read",
                 .where = fmt::format("{}, tensor {}", entry.file.string(), entry.name),
                 .found = entry.stored_type});
  read_plain_rows(*entry.plain, begin, end, out);
  return {};
}

void SafetensorsReader::forget(const TensorEntry& entry, int64_t begin, int64_t end) const {
  if (!entry.plain || entry.plain->data.empty()) return;
  const std::byte* data = entry.plain->data.data();
  const auto rows = static_cast<size_t>(std::max<int64_t>(entry.plain->rows(), 1));
  const size_t row_bytes = entry.plain->data.size() / rows;
  for (const MappedFile& file : files_) {
    const std::byte* base = file.bytes().data();
    if (data < base || data >= base + file.bytes().size()) continue;
    file.forget(static_cast<size_t>(data - base) + static_cast<size_t>(begin) * row_bytes,
                static_cast<size_t>(end - begin) * row_bytes);
    return;
  }
}

bool stays_in_folder(const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos || name.find('\\') != std::string::npos) return false;
  const std::filesystem::path path(name);
  if (path.is_absolute()) return false;
  return std::none_of(path.begin(), path.end(), [](const auto& part) { return part == ".." || part.empty(); });
}

// The files to read where there is no index.
Result<std::string> single_file(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "model.safetensors")) return std::string("model.safetensors");
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") found.push_back(it->path().filename().string());
  if (error) return fail({.what = "cannot list folder", .where = folder.string(), .found = error.message()});
  if (found.size() == 1) return found.front();
  return fail({.what = found.empty() ? "no weights in the folder" : "several safetensors files and no index",
               .where = folder.string(),
               .found = found.empty() ? "no *.safetensors file" : fmt::format("{} files", found.size()),
               .expected = fmt::format("model.safetensors, or shards with {}", kIndexName)});
}

template <class T>
void widen(const std::byte* data, size_t count, float* out, float (*decode)(T)) {
  for (size_t i = 0; i < count; ++i) {
    T code;
    std::memcpy(&code, data + i * sizeof(T), sizeof(T));
    out[i] = decode(code);
  }
}

}  // namespace

void read_plain_rows(const TensorView& view, int64_t begin, int64_t end, std::span<float> out) {
  if (view.data.empty()) {  // zero elements: rows() would divide by zero
    OCTAVO_CHECK(out.empty(), "{} values of an empty tensor", out.size());
    return;
  }
  const auto cols = static_cast<size_t>(view.cols());
  OCTAVO_CHECK(begin >= 0 && begin <= end && end <= view.rows(), "rows [{}, {}) of {}", begin, end, view.rows());
  const size_t first = static_cast<size_t>(begin) * cols, count = static_cast<size_t>(end - begin) * cols;
  OCTAVO_CHECK(out.size() == count, "{} values for {}", out.size(), count);
  const std::byte* data = view.data.data();
  switch (view.element) {
    case ElementType::kF32:
      if (count > 0) std::memcpy(out.data(), data + first * 4, count * 4);
      return;
    case ElementType::kBf16:
      return widen<uint16_t>(data + first * 2, count, out.data(),
                             [](uint16_t code) { return bits_float(static_cast<uint32_t>(code) << 16); });
    case ElementType::kF16:
      return widen<uint16_t>(data + first * 2, count, out.data(), [](uint16_t code) { return F16::decode(code); });
    default:
      for (size_t i = 0; i < count; ++i) out[i] = load_element(view.element, data, first + i);
  }
}

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text, std::string_view where) {
  std::map<std::string, std::string> shards;
  JsonScanner json(text);
  std::string key, file, bad;
  bool found = false;
  const auto scan_map = [&] {
    if (found) return json.fail("weight_map appears twice");
    found = true;
    if (!json.open('{')) return false;
    while (true) {
      bool more = false;
      if (!json.next('}', more)) return false;
      if (!more) return true;
      if (!json.key(key) || !json.string(file)) return false;
      if (!stays_in_folder(file)) {
        bad = file;
        return json.fail("shard outside of the folder");
      }
      if (!shards.emplace(key, file).second) return json.fail("weight_map names a tensor twice");
    }
  };
  const auto scan = [&] {
    if (!json.open('{')) return false;
    while (true) {
      bool more = false;
      if (!json.next('}', more)) return false;
      if (!more) return json.end();
      if (!json.key(key)) return false;
      if (key == "weight_map" ? !scan_map() : !json.skip_value()) return false;
    }
  };
  if (!scan()) {
    if (!bad.empty() || json.error() == "shard outside of the folder")
      return fail({.what = "shard index names a file outside of the model folder",
                   .where = fmt::format("{}, weight_map, tensor {}", where, key.substr(0, 200)),
                   .found = bad.substr(0, 200),
                   .expected = "the name of a file in the folder"});
    return fail({.what = "shard index is not valid",
                 .where = std::string(where),
                 .found = fmt::format("{} (byte {})", json.error(), json.position())});
  }
  if (!found) return fail({.what = "shard index has no weight_map", .where = std::string(where)});
  return shards;
}

Result<std::unique_ptr<TensorReader>> open_safetensors(const std::filesystem::path& path) {
  auto reader = std::make_unique<SafetensorsReader>();
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    OCTAVO_TRY(reader->add_file(path.parent_path(), path.filename().string(), nullptr));
    OCTAVO_TRY(reader->finish(path.parent_path()));
    return reader;
  }
  const std::filesystem::path index_path = path / kIndexName;
  if (!std::filesystem::exists(index_path, ignored)) {
    OCTAVO_ASSIGN(const std::string name, single_file(path));
    OCTAVO_TRY(reader->add_file(path, name, nullptr));
    OCTAVO_TRY(reader->finish(path));
    return reader;
  }
  OCTAVO_ASSIGN(const MappedFile index_file, MappedFile::open(index_path));
  const auto bytes = index_file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  OCTAVO_ASSIGN(const auto index, parse_safetensors_index(text, index_path.string()));
  std::set<std::string> files;
  for (const auto& [tensor, file] : index) files.insert(file);
  for (const std::string& file : files) OCTAVO_TRY(reader->add_file(path, file, &index));
  OCTAVO_TRY(reader->finish(path));
  for (const auto& [tensor, file] : index)
    if (reader->find(tensor) == nullptr)
      return fail({.what = "shard does not hold a tensor that the index places there",
                   .where = fmt::format("{}, tensor {}", (path / file).string(), tensor),
                   .expected = fmt::format("as named by {}", kIndexName)});
  return reader;
}

}  // namespace octavo
