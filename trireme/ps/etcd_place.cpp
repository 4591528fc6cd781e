#include <charconv>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/etcd_lease.h"
#include "trireme/ps/manager_place.h"

// The keys of a job. Whoever writes holds the lease; a generation is what one replace() has made.
//
//   PREFIX/JOB/manager                          who holds the lease; goes with it
//   PREFIX/JOB/address                          where it listens; goes with it
//   PREFIX/JOB/generation/0000000000000002      the newest one is the log, once this is there
//   PREFIX/JOB/log/0000000000000002/00...00     its bytes, in the order of the keys
//   PREFIX/JOB/log/0000000000000002/00...01
//
// A request that was delayed may be done late, and twice. That changes nothing: an old generation
// never becomes the newest again, and the same bytes come under the same key. When the job is over
// all of it goes.

namespace trireme::ps {

namespace {

/// etcd refuses more than 128 operations or 1.5 MiB at a time. The log is read in such pieces, too.
constexpr size_t kEntryBytes = 16 << 10, kEntriesAtOnce = 64;

/// As many digits as the greatest number has: the order of keys is that of numbers.
constexpr size_t kDigits = 16;
std::string digits(uint64_t number) {
  return fmt::format("{:0{}x}", number, kDigits);
}

class EtcdLog final : public ManagerLog {
 public:
  EtcdLog(std::shared_ptr<EtcdLease> lease, const std::vector<net::Address>& hosts,
          const std::string& job)
      : lease_(std::move(lease)), etcd_(hosts), job_(job) {
    generation_ = last_number({job_ + "generation/", job_ + "generation0"}).value_or(0);
    if (const auto last = last_number({log_key(generation_), log_key(generation_ + 1)}))
      next_ = *last + 1;
    // What a manager wrote that died before its replacement was whole.
    lease_->commit({}, {{log_key(generation_ + 1), job_ + "log0"}});
  }

  std::string read() override {
    std::string log;
    EtcdKeys keys{log_key(generation_), log_key(generation_ + 1)};
    for (;;) {
      const auto entries = lease_->while_held([&] { return etcd_.read(keys, kEntriesAtOnce); });
      for (const auto& entry : entries) log += entry.value;
      if (entries.size() < kEntriesAtOnce) return log;
      keys.begin = entries.back().key + '\0';  // the next key that there can be
    }
  }

  void append(std::string_view record) override { waiting_ += record; }

  void sync() override {
    auto entries = cut(waiting_, generation_, next_);
    const uint64_t next = next_ + entries.size();
    while (!entries.empty()) lease_->commit(take_some(entries));
    next_ = next;
    waiting_.clear();
  }

  /// The change that makes the new log the newest comes last, and takes the old one away.
  void replace(std::string_view log) override {
    waiting_.clear();  // the new log has it
    auto entries = cut(log, generation_ + 1, 0);
    next_ = entries.size();
    while (entries.size() > kEntriesAtOnce) lease_->commit(take_some(entries));
    ++generation_;
    const std::string newest = job_ + "generation/" + digits(generation_);
    entries.push_back({.key = newest});
    lease_->commit(std::move(entries),
                   {{job_ + "generation/", newest}, {job_ + "log/", log_key(generation_)}});
  }

  void check_held() override { lease_->check_held(); }

 private:
  std::string log_key(uint64_t generation) const {
    return job_ + "log/" + digits(generation) + "/";
  }

  /// The number at the end of the last of these keys.
  std::optional<uint64_t> last_number(const EtcdKeys& keys) {
    const auto entry = lease_->while_held([&] { return etcd_.read_last(keys); });
    if (!entry) return {};
    const std::string text = entry->key.substr(keys.begin.size());
    uint64_t number = 0;
    const auto end = text.data() + text.size();
    if (text.size() != kDigits || std::from_chars(text.data(), end, number, 16).ptr != end)
      throw CommError(fmt::format("etcd at {} has a key that no manager writes, {}: remove it",
                                  etcd_.hosts(), entry->key));
    return number;
  }

  std::vector<EtcdEntry> cut(std::string_view bytes, uint64_t generation, uint64_t next) const {
    std::vector<EtcdEntry> entries;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kEntryBytes, bytes.size())))
      entries.push_back({.key = log_key(generation) + digits(next++),
                         .value = std::string(bytes.substr(0, kEntryBytes))});
    return entries;
  }

  static std::vector<EtcdEntry> take_some(std::vector<EtcdEntry>& entries) {
    const auto end =
        entries.begin() + static_cast<std::ptrdiff_t>(std::min(kEntriesAtOnce, entries.size()));
    std::vector<EtcdEntry> some(std::make_move_iterator(entries.begin()),
                                std::make_move_iterator(end));
    entries.erase(entries.begin(), end);
    return some;
  }

  std::shared_ptr<EtcdLease> lease_;
  Etcd etcd_;
  const std::string job_;
  uint64_t generation_ = 0, next_ = 0;
  std::string waiting_;  ///< since the last sync
};

/// Reads a key again and again on a thread of its own, but only while somebody asks for it.
class EtcdWatch {
 public:
  EtcdWatch(const std::vector<net::Address>& hosts, std::string key)
      : etcd_(hosts), key_(std::move(key)) {}

  std::string newest() {
    const std::lock_guard lock(mutex_);
    asked_at_ = net::Clock::now();
    if (!thread_.joinable())
      thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
    wake_.notify_all();
    return value_;
  }
  std::string trouble() {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }

 private:
  static constexpr std::chrono::milliseconds kPause{200};
  static constexpr std::chrono::seconds kAsked{1};

  void loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto is_asked = [this] { return net::Clock::now() - asked_at_ < kAsked; };
    while (wake_.wait(lock, stop, is_asked) && !stop.stop_requested()) {
      lock.unlock();
      std::optional<EtcdEntry> entry;
      std::string trouble;
      try {
        entry = etcd_.read(key_);
      } catch (const CommError& error) {  // what was read before may still be true
        trouble = error.what();
      }
      lock.lock();
      if (trouble.empty()) value_ = entry ? entry->value : "";
      trouble_ = trouble;
      wake_.wait_for(lock, stop, kPause, [] { return false; });
    }
  }

  Etcd etcd_;  ///< of thread_
  const std::string key_;
  std::mutex mutex_;  ///< of the four below
  std::condition_variable_any wake_;
  net::Deadline asked_at_;
  std::string value_, trouble_;
  std::jthread thread_;
};

class EtcdPlace final : public ManagerPlace {
 public:
  EtcdPlace(std::vector<net::Address> hosts, std::string job, std::chrono::seconds lease_time)
      : hosts_(std::move(hosts)),
        job_(std::move(job)),
        lease_time_(lease_time),
        address_(hosts_, job_ + "address") {}

  std::unique_ptr<ManagerLog> open_log() override {
    auto lease = std::make_shared<EtcdLease>(hosts_, job_ + "manager", lease_time_);
    lease_ = lease;
    return std::make_unique<EtcdLog>(std::move(lease), hosts_, job_);
  }

  void announce(const Endpoint& endpoint) override {
    const auto lease = lease_.lock();
    core::check(lease != nullptr, "announce: this process has not opened the manager's log");
    lease->commit({{.key = job_ + "address", .value = to_bytes(endpoint), .lease = lease->id()}});
  }

  /// The keys below "a/b/" are those from "a/b/" to "a/b0".
  void forget() override {
    if (const auto lease = lease_.lock())
      lease->commit({}, {{job_, job_.substr(0, job_.size() - 1) + "0"}});
  }

  std::optional<Endpoint> find() override {
    try {
      const std::string bytes = address_.newest();
      return bytes.empty() ? std::nullopt : std::optional(from_bytes<Endpoint>(bytes));
    } catch (const Error&) {  // not an address
      return {};
    }
  }

  std::string trouble() override { return address_.trouble(); }

 private:
  const std::vector<net::Address> hosts_;
  const std::string job_;  ///< what its keys begin with
  const std::chrono::seconds lease_time_;
  std::weak_ptr<EtcdLease> lease_;
  EtcdWatch address_;
};

/// A job's name as one step of a key: those of job "a/log" must not lie among those of job "a".
std::string as_key_step(const std::string& name) {
  std::string step;
  for (const char c : name) step += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  return step;
}

}  // namespace

std::unique_ptr<ManagerPlace> manager_in_etcd(const std::string& where, const std::string& job,
                                              std::chrono::seconds lease_time) {
  const auto refuse = [](const std::string& why) {
    throw ConfigError(fmt::format(
        "{}: a manager's place in etcd is etcd://host:port[,host:port...][/prefix]", why));
  };
  std::string_view rest = where;
  if (!rest.starts_with(kEtcdScheme)) refuse(fmt::format("'{}' is not in etcd", where));
  rest.remove_prefix(kEtcdScheme.size());
  if (rest.find('@') != rest.npos) refuse("etcd with a user and a password is not supported");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view names = rest.substr(0, slash), prefix = rest.substr(slash);
  while (prefix.starts_with('/')) prefix.remove_prefix(1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);

  std::vector<net::Address> hosts;
  for (bool more = true; more;) {
    const size_t comma = names.find(',');
    more = comma != names.npos;
    try {
      hosts.push_back(net::parse_address(names.substr(0, comma)));
    } catch (const ConfigError& error) {
      refuse(fmt::format("'{}': {}", where, error.what()));
    }
    if (more) names.remove_prefix(comma + 1);
  }
  return std::make_unique<EtcdPlace>(
      std::move(hosts),
      fmt::format("{}/{}/", prefix.empty() ? "trireme" : prefix, as_key_step(job)), lease_time);
}

}  // namespace trireme::ps
