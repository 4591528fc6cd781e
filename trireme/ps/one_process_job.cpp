#include "trireme/ps/one_process_job.h"

#include <mutex>

#include "trireme/ps/manager.h"

namespace trireme::ps {

namespace {

class MemoryLog final : public ManagerLog {
 public:
  std::string read() override { return log_; }
  void append(std::string_view record) override { log_ += record; }
  void sync() override {}
  void replace(std::string_view log) override { log_ = log; }

 private:
  std::string log_;
};

class MemoryPlace final : public ManagerPlace {
 public:
  std::unique_ptr<ManagerLog> open_log() override { return std::make_unique<MemoryLog>(); }
  void announce(const Endpoint& endpoint) override {
    const std::lock_guard lock(mutex_);
    endpoint_ = endpoint;
  }
  std::optional<Endpoint> find() override {
    const std::lock_guard lock(mutex_);
    return endpoint_;
  }

 private:
  std::mutex mutex_;
  std::optional<Endpoint> endpoint_;
};

}  // namespace

OneProcessJob::OneProcessJob(const JobConfig& job, std::shared_ptr<const SnapshotFiles> snapshots)
    : options_{
          .connections = {.job = job.name, .secret = net::Secret::random(), .lanes = job.lanes},
          .place = std::make_shared<MemoryPlace>(),
          .snapshots = std::move(snapshots)} {
  check(job);
  NodeOptions listening = options_;
  listening.connections.listen = net::Address{"127.0.0.1", 0};
  NodeOptions own = listening;
  own.log = own.place->open_log();
  manager_ = std::make_unique<NodeThread>(std::move(own));
  manager_->start(
      [&](Environment& environment) { return std::make_unique<Manager>(job, environment); });
  options_.place->announce(manager_->endpoint());
  for (uint32_t index = 0; index < job.servers; ++index)
    servers_.push_back(std::make_unique<ServerProcess>(listening, job, index));
}

void OneProcessJob::want_last_snapshot() {
  manager_->call([](Node& node) { static_cast<Manager&>(node).want_last_snapshot(); });
}

}  // namespace trireme::ps
