#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

// Columns that a UTF-8 text takes, one per code point.
size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

bool is_terminal(int fd) {
  return isatty(fd) == 1;
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 60) return fmt::format("{:.0f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(std::string label, bool quiet)
    : label_(std::move(label)),
      quiet_(quiet),
      terminal_(is_terminal(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()),
      last_(start_ - std::chrono::seconds(1)) {}

Progress::~Progress() {
  if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(double done, double total, std::string_view detail) {
  if (quiet_ || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count(),
               share = std::clamp(done / total, 0.0, 1.0);
  const std::string eta =
      share > 0 && share < 1 ? "ETA " + human_seconds(elapsed / share - elapsed) : human_seconds(elapsed);
  if (!terminal_) {  // a line per tenth, and only for work that takes a while
    const int tenth = static_cast<int>(share * 10);
    if (tenth == last_tenth_ || elapsed < 2.0) return;
    last_tenth_ = tenth;
    fmt::print(stderr, "{} {:3.0f} %  {}  {}\n", label_, share * 100, eta, detail);
    return;
  }
  if (share < 1 && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  const int width =
      std::clamp(terminal_width() - static_cast<int>(label_.size() + eta.size() + detail.size()) - 14, 5, 40);
  const int full = static_cast<int>(share * width);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < full ? "█" : "░";
  fmt::print(stderr, "\r\033[K{} {} {:3.0f} %  {}  {}", label_, bar, share * 100, eta, detail);
  std::fflush(stderr);
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) {
      if (widths.size() <= c) widths.push_back(0);
      widths[c] = std::max(widths[c], display_width(row[c]));
    }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string padding(widths[c] - display_width(rows_[r][c]), ' ');
      const bool left = std::find(left_.begin(), left_.end(), c) != left_.end();
      line += c == 0 ? "" : "  ";
      line += left ? rows_[r][c] + padding : padding + rows_[r][c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) {
      size_t total = 2 * (widths.size() - 1);
      for (const size_t width : widths) total += width;
      out += std::string(total, '-') + "\n";
    }
  }
  return out;
}

}  // namespace octavo
