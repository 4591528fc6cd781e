#include "trireme/launch/tail.h"

namespace trireme::launch {

void Tail::add(std::string_view text) {
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    if (!line_open_) {
      if (lines_.size() == kLines) lines_.pop_front();
      lines_.emplace_back();
    }
    std::string& last = lines_.back();
    if (last.size() < kLineBytes) last += line.substr(0, kLineBytes - last.size());
    line_open_ = newline == text.npos;
    text.remove_prefix(line_open_ ? text.size() : newline + 1);
  }
}

}  // namespace trireme::launch
