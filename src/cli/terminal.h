// What a person sees: progress with ETA, tables, sizes. Progress goes to stderr: a bar on a terminal, plain lines
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

bool is_terminal(int fd);
std::string human_bytes(double bytes);      // "134.5 MB"
std::string human_seconds(double seconds);  // "1 min 12 s"

class Progress {
 public:
  Progress(std::string label, bool quiet);
  ~Progress();  // clears the bar, or ends the last line
  void update(double done, double total, std::string_view detail = {});

 private:
  std::string label_;
  bool quiet_, terminal_, shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
  int last_tenth_ = -1;
};

// Columns as wide as their widest cell; the first left-aligned, the others right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void align_left(size_t column) { left_.push_back(column); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> left_{0};
};

}  // namespace octavo
