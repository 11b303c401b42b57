#include "checkpoint/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace octavo {
namespace {

constexpr const char* kLock = "lock";

// "out/" names the same folder as "out".
std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// Absolute, with links resolved as far as the path exists.
std::filesystem::path resolved(const std::filesystem::path& path, std::error_code& error) {
  const auto absolute = std::filesystem::absolute(without_slash(path), error);
  return error ? std::filesystem::path() : std::filesystem::weakly_canonical(absolute, error);
}

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto [rest, unused] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return rest == folder.end();
}

std::filesystem::path writing_folder(const std::filesystem::path& out) {
  std::filesystem::path folder = without_slash(out);
  folder += ".writing";
  return folder;
}

Error busy(const std::filesystem::path& out) {
  return {.what = "another run is writing this output",
          .where = out.string(),
          .remedy = "wait for it, or choose another output folder"};
}

// Renames `folder` and syncs.
Result<void> give_name(const std::filesystem::path& folder, const std::filesystem::path& target) {
  if (rename(folder.c_str(), target.c_str()) != 0)
    return fail(
        {.what = "cannot give the output folder its name", .where = target.string(), .found = std::strerror(errno)});
  const std::filesystem::path parent = target.parent_path();
  const int fd = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);  // the name survives a power cut; not every file system can, which is no fault of the folder
    close(fd);
  }
  return {};
}

}  // namespace

Result<void> check_output(const std::filesystem::path& model, const std::filesystem::path& out) {
  std::error_code error;
  const auto target = resolved(out, error);
  if (error || target.empty())
    return fail({.what = "output folder has a bad path", .where = out.string(), .found = error.message()});
  const auto source = resolved(model, error);
  if (target == source)
    return fail(
        {.what = "output and model are the same", .where = out.string(), .remedy = "choose another output folder"});
  if (std::filesystem::is_directory(source, error) && is_inside(target, source))
    return fail({.what = "output folder lies inside of the model's folder",
                 .where = out.string(),
                 .remedy = "choose an output folder outside of it"});
  const auto status = std::filesystem::status(target, error);
  if (!std::filesystem::exists(status)) {
    if (std::filesystem::is_directory(target.parent_path(), error)) return {};
    return fail({.what = "folder does not exist",
                 .where = target.parent_path().string(),
                 .remedy = "create it, or choose another output folder"});
  }
  if (!std::filesystem::is_directory(status))
    return fail({.what = "output exists and is not a folder", .where = out.string()});
  if (!std::filesystem::is_empty(target, error) || error)
    return fail({.what = "output folder is not empty",
                 .where = out.string(),
                 .remedy = "remove it, or choose another output folder"});
  return {};
}

Result<void> check_space(const std::filesystem::path& out, int64_t bytes) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(without_slash(out), error).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(parent, error);
  if (error || bytes <= 0 || space.available >= static_cast<uintmax_t>(bytes)) return {};
  return fail({.what = "not enough disk space",
               .where = parent.string(),
               .found = fmt::format("{} MB free", space.available / 1'000'000),
               .expected = fmt::format("{} MB", bytes / 1'000'000 + 1),
               .remedy = "free space on that disk, or write to another one"});
}

Result<void> OutputFolder::check_free(const std::filesystem::path& out) {
  OCTAVO_ASSIGN(const bool held, FileLock::held(writing_folder(out) / kLock));
  if (held) return fail(busy(out));
  return {};
}

int64_t OutputFolder::left_bytes(const std::filesystem::path& out) {
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(writing_folder(out), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code none;
    const uintmax_t size = it->is_regular_file(none) ? it->file_size(none) : 0;
    if (!none) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Result<OutputFolder> OutputFolder::create(const std::filesystem::path& model, const std::filesystem::path& out) {
  OCTAVO_TRY(check_output(model, out));
  const std::filesystem::path writing = writing_folder(out), own = writing / "model";
  std::error_code error;
  std::filesystem::create_directory(writing, error);
  if (error) return fail({.what = "cannot create folder", .where = writing.string(), .found = error.message()});
  OCTAVO_ASSIGN(std::optional<FileLock> lock, FileLock::take(writing / kLock));
  if (!lock) return fail(busy(out));
  OutputFolder folder;
  folder.lock_ = std::move(lock);
  folder.model_ = own;
  folder.out_ = without_slash(out);
  std::filesystem::remove_all(own, error);  // of a run that was killed
  if (!std::filesystem::create_directory(own, error))
    return fail({.what = "cannot create folder", .where = own.string(), .found = error.message()});
  return folder;
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : model_(std::exchange(other.model_, {})),
      out_(std::exchange(other.out_, {})),
      lock_(std::exchange(other.lock_, std::nullopt)) {}

OutputFolder::~OutputFolder() {
  if (!lock_) return;
  std::error_code ignored;
  std::filesystem::remove_all(model_, ignored);
  remove_rest();
}

void OutputFolder::remove_rest() {
  lock_->remove();
  lock_.reset();
  rmdir(model_.parent_path().c_str());  // not empty where the next run is in it already
}

Result<void> OutputFolder::finish() {
  OCTAVO_TRY(give_name(model_, out_));
  remove_rest();
  return {};
}

}  // namespace octavo
