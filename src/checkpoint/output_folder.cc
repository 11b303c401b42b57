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

Result<void> finish_folder(const std::filesystem::path& temporary, const std::filesystem::path& out) {
  const std::filesystem::path target = without_slash(out);
  if (rename(temporary.c_str(), target.c_str()) != 0)
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

Result<OutputFolder> OutputFolder::create(const std::filesystem::path& model, const std::filesystem::path& out) {
  OCTAVO_TRY(check_output(model, out));
  OutputFolder folder;
  const std::filesystem::path target = without_slash(out);
  const auto temporary = target.parent_path() / fmt::format(".{}.tmp.{}", target.filename().string(), getpid());
  std::error_code error;
  std::filesystem::remove_all(temporary, error);  // of an earlier process with our id
  if (!std::filesystem::create_directory(temporary, error))
    return fail({.what = "cannot create folder", .where = temporary.string(), .found = error.message()});
  folder.temporary_ = temporary;
  folder.out_ = target;
  return folder;
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : temporary_(std::exchange(other.temporary_, {})), out_(std::exchange(other.out_, {})) {}

OutputFolder::~OutputFolder() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

Result<void> OutputFolder::finish() {
  OCTAVO_TRY(finish_folder(temporary_, out_));
  temporary_.clear();
  return {};
}

}  // namespace octavo
