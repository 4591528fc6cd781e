#include "trireme/ps/process.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "trireme/core/error.h"
#include "trireme/format/file.h"

namespace trireme::ps {

namespace fs = std::filesystem;

namespace {

/// How often a node looks at the clock.
constexpr std::chrono::milliseconds kTick{5};
constexpr int64_t kMostFileBytes = int64_t{1} << 40;

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

/// A rename is on the disk when its folder is.
void sync_folder(const std::string& folder) {
  const net::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail("sync", folder);
}

}  // namespace

ProcessEnvironment::ProcessEnvironment(const std::string& folder, NodeId me,
                                       Connections& connections,
                                       std::function<void(const std::string&)> note)
    : folder_(folder), connections_(connections), note_(std::move(note)) {
  std::error_code error;
  fs::create_directories(folder + "/files", error);
  if (error)
    throw CheckpointError(
        fmt::format("cannot make the folder {}/files: {}", folder, error.message()));
  std::string name = name_of(me);
  std::ranges::replace(name, ' ', '-');
  log_path_ = folder + "/log." + name;
  log_ = net::Fd(::open(log_path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log_) fail("open", log_path_);
  sync_folder(folder);
}

ProcessEnvironment::~ProcessEnvironment() = default;

Time ProcessEnvironment::now() {
  return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
}

uint64_t ProcessEnvironment::random() {
  uint64_t number = 0;
  while (number == 0)  // 0 stands for none
    if (::getrandom(&number, sizeof number, 0) < 0 && errno != EINTR) fail("draw", "random bytes");
  return number;
}

void ProcessEnvironment::send(NodeId to, std::string message) {
  connections_.send(to, std::move(message));
}

void ProcessEnvironment::append(std::string_view record) {
  while (!record.empty()) {
    const ssize_t written = ::write(log_.get(), record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", log_path_);
    record.remove_prefix(static_cast<size_t>(written));
  }
}

void ProcessEnvironment::sync() {
  if (::fdatasync(log_.get()) != 0) fail("sync", log_path_);
}

std::string ProcessEnvironment::read_log() {
  return format::read_file(log_path_, kMostFileBytes);
}

void ProcessEnvironment::truncate_log(size_t bytes) {
  if (::ftruncate(log_.get(), static_cast<off_t>(bytes)) != 0) fail("truncate", log_path_);
}

std::string ProcessEnvironment::path_of(const std::string& name) const {
  std::string flat = name;
  std::ranges::replace(flat, '/', '_');
  return folder_ + "/files/" + flat;
}

void ProcessEnvironment::save(const std::string& name, std::string bytes) {
  const std::string path = path_of(name), beside = fmt::format("{}.{}", path, random());
  format::write_file(beside, bytes);
  if (::rename(beside.c_str(), path.c_str()) != 0) fail("rename", beside);
  sync_folder(folder_ + "/files");
}

std::optional<std::string> ProcessEnvironment::load(const std::string& name) {
  const std::string path = path_of(name);
  if (!format::is_file(path)) return std::nullopt;
  return format::read_file(path, kMostFileBytes);
}

NodeProcess::NodeProcess(Options options, const Make& make) : options_(std::move(options)) {
  connections_ = std::make_unique<Connections>(
      options_.connections, [this](std::string_view bytes) { node_->receive(bytes); });
  environment_ = std::make_unique<ProcessEnvironment>(options_.folder, options_.connections.me,
                                                      *connections_, options_.note);
  node_ = make(*environment_);
  if (options_.listening) options_.listening(connections_->address());
  thread_ = std::jthread([this] { loop(); });
}

NodeProcess::~NodeProcess() {
  stops_ = true;
  connections_->wake();
  if (thread_.joinable()) thread_.join();
}

void NodeProcess::loop() {
  auto tick_at = net::Clock::now();
  try {
    while (!stops_) {
      connections_->step(tick_at);
      call_posted();
      if (net::Clock::now() < tick_at) continue;
      node_->tick();
      tick_at = net::Clock::now() + kTick;
    }
  } catch (...) {
    options_.note("this node has ended because of an error");
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

void NodeProcess::call_posted() {
  std::vector<std::function<void(Node&)>> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(posted_);
  }
  for (const auto& call : calls) call(*node_);
}

void NodeProcess::post(std::function<void(Node&)> call) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
  }
  connections_->wake();
}

void NodeProcess::run(const std::function<void(Node&)>& call) {
  const auto done = std::make_shared<bool>(false);  // guarded by the mutex
  post([this, done, &call](Node& node) {
    call(node);
    const std::lock_guard lock(mutex_);
    *done = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return *done || failure_; });
  if (!*done) std::rethrow_exception(failure_);
}

std::exception_ptr NodeProcess::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace trireme::ps
