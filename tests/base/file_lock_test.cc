#include "base/file_lock.h"

#include <gtest/gtest.h>

#include "support/test_folder.h"

namespace octavo {
namespace {

TEST(FileLock, OneHoldsItAtATime) {
  TestFolder folder;
  const std::filesystem::path path = folder / "lock";
  EXPECT_FALSE(FileLock::held(path).value());
  EXPECT_FALSE(std::filesystem::exists(path)) << "asking makes nothing";
  auto first = FileLock::take(path);
  ASSERT_TRUE(first.has_value() && *first);
  EXPECT_TRUE(FileLock::held(path).value());
  auto second = FileLock::take(path);
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(second->has_value());
  (*first)->remove();
  EXPECT_FALSE(std::filesystem::exists(path));
  second = FileLock::take(path);
  ASSERT_TRUE(second.has_value() && *second);
  EXPECT_TRUE(std::filesystem::exists(path));
}

// A lock that cannot be had is no other run.
TEST(FileLock, WhereItCannotBeMadeIsAnError) {
  TestFolder folder;
  const auto nowhere = FileLock::take(folder / "no" / "lock");
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_NE(nowhere.error().found, "");
  EXPECT_FALSE(FileLock::held(folder / "no" / "lock").value());
  std::filesystem::create_directory(folder / "folder");
  EXPECT_FALSE(FileLock::take(folder / "folder").has_value());
}

}  // namespace
}  // namespace octavo
