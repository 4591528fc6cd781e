#include "support/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "trireme/core/env.h"

namespace trireme::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

std::pair<net::Fd, net::Fd> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  return {net::Fd(ends[0]), net::Fd(ends[1])};
}

/// A file with this content, read from its beginning.
net::Fd make_input(const std::string& content) {
  net::Fd file(memfd_create("input", MFD_CLOEXEC));
  if (write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()))
    throw std::runtime_error("cannot write the input");
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

/// Appends what is there; false at the end of the pipe.
bool read_into(std::string& text, int fd) {
  char buffer[65536];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  text.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

}  // namespace

Command::Command(std::vector<std::string> argv, CommandOptions options)
    : began_(Clock::now()), deadline_(began_ + options.deadline) {
  auto [out, out_writer] = make_pipe();
  auto [err, err_writer] = make_pipe();
  const net::Fd input = make_input(options.input);
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    dup2(input.get(), 0);
    dup2(out_writer.get(), 1);
    dup2(err_writer.get(), 2);
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(words[0], words.data());
    _exit(127);
  }
  out_ = std::move(out);
  err_ = std::move(err);
}

Command::~Command() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Command::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool Command::pump(const std::function<bool()>& done) {
  while (!done()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now()).count();
    if (left <= 0 || (!out_ && !err_)) return false;
    pollfd waited[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    poll(waited, 2, static_cast<int>(left));
    if (waited[0].revents != 0 && !read_into(result_.out, out_.get())) out_.reset();
    if (waited[1].revents != 0 && !read_into(result_.err, err_.get())) err_.reset();
  }
  return true;
}

bool Command::wait_for(const std::string& text) {
  return pump([&] {
    return result_.out.find(text) != std::string::npos ||
           result_.err.find(text) != std::string::npos;
  });
}

CommandResult Command::finish() {
  pump([] { return false; });
  int status = 0;
  const auto ended = [&] { return waitpid(pid_, &status, WNOHANG) == pid_; };
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
  if (!eventually(ended, std::max(left, milliseconds(100)))) {
    result_.in_time = false;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  result_.wall = std::chrono::duration_cast<milliseconds>(Clock::now() - began_);
  result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result_;
}

CommandResult run_command(std::vector<std::string> argv, CommandOptions options) {
  return Command(std::move(argv), std::move(options)).finish();
}

bool eventually(const std::function<bool()>& condition, milliseconds deadline) {
  for (const auto end = Clock::now() + deadline; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return condition();
}

std::vector<pid_t> processes_with(const std::string& name, const std::string& value) {
  const std::string wanted = '\0' + name + "=" + value + '\0';
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = core::parse_int(entry.path().filename().string());
    if (!pid) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    std::string text(1, '\0');
    text.append(std::istreambuf_iterator<char>(file), {});
    if (text.find(wanted) != text.npos) found.push_back(static_cast<pid_t>(*pid));
  }
  return found;
}

std::string unique_marker() {
  static std::atomic<int> count = 0;
  return std::to_string(getpid()) + "-" + std::to_string(++count);
}

}  // namespace trireme::test
