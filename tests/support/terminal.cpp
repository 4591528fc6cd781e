#include "support/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace trireme::test {

using Clock = std::chrono::steady_clock;

std::vector<std::string> screen_of(const std::string& bytes, int columns) {
  std::vector<std::string> lines(1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (c == '\r') {
      at = 0;
    } else if (c == '\n') {
      lines.emplace_back();
      at = 0;
    } else if (c == '\033' && i + 1 < bytes.size() && bytes[i + 1] == '[') {
      i += 2;
      while (i < bytes.size() && !std::isalpha(static_cast<unsigned char>(bytes[i]))) ++i;
      if (i < bytes.size() && bytes[i] == 'K')
        lines.back().resize(std::min(at, lines.back().size()));
    } else if (static_cast<unsigned char>(c) >= ' ') {
      if (at == static_cast<std::size_t>(columns)) {
        lines.emplace_back();
        at = 0;
      }
      if (lines.back().size() <= at) lines.back().resize(at + 1, ' ');
      lines.back()[at++] = c;
    }
  }
  return lines;
}

Terminal::Terminal(std::vector<std::string> argv, TerminalOptions options)
    : columns_(options.columns), deadline_(Clock::now() + options.deadline) {
  const winsize size{.ws_row = 50,
                     .ws_col = static_cast<unsigned short>(columns_),
                     .ws_xpixel = 0,
                     .ws_ypixel = 0};
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  int master = -1;
  pid_ = ::forkpty(&master, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("forkpty");
  if (pid_ == 0) {
    ::setenv("TERM", "xterm", 1);
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  master_ = net::Fd(master);
}

Terminal::~Terminal() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Terminal::type(const std::string& keys) const {
  if (::write(master_.get(), keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("cannot type");
}

bool Terminal::read_some() {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  pollfd waited{master_.get(), POLLIN, 0};
  if (left <= 0 || ::poll(&waited, 1, static_cast<int>(left)) <= 0) return false;
  char buffer[4096];
  const ssize_t got = ::read(master_.get(), buffer, sizeof buffer);
  if (got <= 0) return false;  // EIO: the other end is closed
  bytes_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

bool Terminal::wait_for(const std::string& text) {
  while (bytes_.find(text) == std::string::npos)
    if (!read_some()) return false;
  return true;
}

int Terminal::finish() {
  while (read_some()) {
  }
  if (Clock::now() >= deadline_) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace trireme::test
