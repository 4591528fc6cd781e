// One process of a parameter server whose speed bench/ps measures: the manager, a server or a
// worker, as the environment says (ps/role.h). All processes of a job get the same arguments.
//
//     parameter_server dense|sparse [--name value ...]
//
// A worker prepares and prints a line. Then it reads lines, each a number of steps, does so many,
// and prints {"us": [...]}: how long each took. Every result is checked, outside of the time. A
// step pushes a gradient and pulls what comes of it into memory of the worker's own, of all of a
// dense table, or of random rows of a sparse one.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/net/socket.h"
#include "trireme/ps/client.h"
#include "trireme/ps/role.h"

using namespace trireme;

namespace {

struct Options {
  std::string table = "dense";
  std::map<std::string, std::string> given = {
      {"mib", "64"},       // of a dense table
      {"rows", "100000"},  // of a sparse table,
      {"elems", "64"},     // with so many floats each,
      {"keys", "4096"},    // so many of which a step uses
      {"free", "0"},       // 0: lockstep
      {"push", "1"},       // 0: steps only pull
      {"copies", "0"},        {"ranges", "16"},
      {"lanes", "2"},         {"local", "1"},  // 0: workers use tcp
      {"together", "1"},                       // workers begin a step at once
      {"pause_ms", "0"},                       // a step begins with a rest
      {"listen", "127.0.0.1"}};

  uint64_t number(const std::string& name) const { return std::stoull(given.at(name)); }
  bool says(const std::string& name) const { return number(name) != 0; }
};

Options read_options(int argc, char** argv) {
  Options options;
  if (argc > 1) options.table = argv[1];
  core::check(options.table == "dense" || options.table == "sparse",
              "the table is '{}'; use dense or sparse", options.table);
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = std::string(argv[i]).substr(2);
    core::check(options.given.contains(name), "there is no option {}", argv[i]);
    options.given[name] = argv[i + 1];
  }
  return options;
}

ps::JobConfig job_of(const Options& options, const ps::JobRole& role) {
  constexpr uint64_t kSteps = 1 << 20;
  const bool dense = options.table == "dense";
  ps::JobConfig job{.name = role.job, .servers = role.servers, .workers = role.workers};
  job.copies = static_cast<uint32_t>(options.number("copies"));
  job.ranges = static_cast<uint32_t>(options.number("ranges"));
  job.lanes = static_cast<uint32_t>(options.number("lanes"));
  job.data = {.batches_per_epoch = kSteps * role.workers, .steps_per_task = 256};
  job.tables = {
      {.name = "table",
       .kind = dense ? ps::TableKind::Dense : ps::TableKind::Sparse,
       .elems = dense ? (options.number("mib") << 20) / sizeof(float) : options.number("elems"),
       .consistency = options.says("free") ? ps::Consistency::Free : ps::Consistency::Lockstep,
       .rule = ps::make_sgd({.lr = 1})}};
  return job;
}

/// Lets all workers of a host go on at once.
class Barrier {
 public:
  Barrier(const std::string& path, uint32_t workers) : workers_(workers) {
    const net::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    core::check(file && ::ftruncate(file.get(), sizeof *arrived_) == 0, "cannot make {}", path);
    void* memory =
        ::mmap(nullptr, sizeof *arrived_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    core::check(memory != MAP_FAILED, "cannot map {}", path);
    arrived_ = static_cast<std::atomic<uint64_t>*>(memory);
  }
  void wait() {
    const uint64_t mine = ++*arrived_, all = (mine + workers_ - 1) / workers_ * workers_;
    while (*arrived_ < all) std::this_thread::yield();
  }

 private:
  std::atomic<uint64_t>* arrived_ = nullptr;  // never unmapped: it lives as long as the process
  uint32_t workers_;
};

/// Operations at one clock after the other.
class Steps {
 public:
  explicit Steps(ps::Client& client) : client_(client) {}

  ps::Client::Operation next() {
    if (next_ == work_.batches.size()) {
      if (next_ > 0) client_.done(work_);
      const auto work = client_.next();
      core::check(work.has_value(), "the data order has ended");
      work_ = *work;
      next_ = 0;
    }
    ps::Client::Operation op{.clock = work_.clock + next_, .view_version = work_.view_version};
    op.batch = work_.batches[next_++];
    op.push = op.pull = true;
    return op;
  }
  /// At the same clock again: for reads.
  ps::Client::Operation same() {
    if (work_.batches.empty()) held_ = next();
    auto op = held_;
    op.push = false;
    return op;
  }

 private:
  ps::Client& client_;
  ps::Client::Work work_ = {};
  ps::Client::Operation held_ = {};
  size_t next_ = 0;
};

/// What a kind of table does in a step.
class Task {
 public:
  virtual ~Task() = default;
  virtual void prepare() = 0;
  virtual void step() = 0;  ///< this alone is timed
  virtual void check() = 0;
};

/// Worker w pushes w + 1 for every element. In lockstep all values are minus their mean, times the
/// steps; free ones are at least as far from 0 as this worker alone has pushed them.
class DenseTask final : public Task {
 public:
  DenseTask(ps::Client& client, const Options& options, uint32_t worker)
      : client_(client),
        mine_(static_cast<float>(worker + 1)),
        push_(options.says("push")),
        lockstep_(!options.says("free")),
        values_(client.job().tables[0].elems),
        gradient_(client.arena()->take(values_.size() * sizeof(float))) {}

  void prepare() override {
    auto* gradient = static_cast<float*>(gradient_.get());
    if (push_) std::fill_n(gradient, values_.size(), mine_);
    op_ = push_ ? steps_.next() : steps_.same();
    op_.values = {gradient_,
                  {reinterpret_cast<const char*>(gradient), values_.size() * sizeof(float)}};
    if (push_)
      op_.into = reinterpret_cast<std::byte*>(values_.data());
    else  // reads the values where they are
      op_.values = {};
  }
  void step() override { result_ = client_.wait(client_.start(std::move(op_))); }
  void check() override {
    result_ = {};
    if (!push_) return;
    const uint32_t workers = client_.job().workers;
    const float mean = static_cast<float>(workers + 1) / 2;
    const float least = -static_cast<float>(++pushed_) * (lockstep_ ? mean : mine_);
    const bool good = std::ranges::all_of(
        values_, [&](float value) { return lockstep_ ? value == least : value <= least; });
    core::check(good, "wrong values after {} steps: the first is {}", pushed_, values_[0]);
  }

 private:
  ps::Client& client_;
  float mine_;
  bool push_, lockstep_;
  std::vector<float> values_;
  std::shared_ptr<void> gradient_;
  Steps steps_{client_};
  ps::Client::Operation op_;
  ps::Client::Result result_;
  uint64_t pushed_ = 0;
};

/// Every element of a row is minus the number of steps that named the row. Each worker has rows of
/// its own: those whose keys leave its number when divided by the workers'.
class SparseTask final : public Task {
 public:
  SparseTask(ps::Client& client, const Options& options, uint32_t worker)
      : client_(client),
        worker_(worker),
        workers_(client.job().workers),
        keys_(options.number("keys")),
        times_(options.number("rows") / workers_),
        elems_(client.job().tables[0].elems),
        random_(worker + 1),
        rows_(keys_ * elems_) {
    constexpr uint64_t kAtOnce = 1 << 16;
    for (uint64_t begin = 0; begin < times_.size(); begin += kAtOnce) {
      auto op = steps_.next();
      op.pull = false;
      for (uint64_t key = begin; key < std::min<uint64_t>(begin + kAtOnce, times_.size()); ++key)
        op.keys.push_back(key * workers_ + worker_);
      op.values = std::string(op.keys.size() * elems_ * sizeof(float), '\0');
      (void)client_.wait(client_.start(std::move(op)));
    }
  }

  void prepare() override {
    op_ = steps_.next();
    while (op_.keys.size() < keys_) {
      const uint64_t key = random_() % times_.size();
      if (taken_.insert(key).second) op_.keys.push_back(key * workers_ + worker_);
    }
    taken_.clear();
    named_ = op_.keys;
    op_.key_check = ps::Client::Operation::KeyCheck::Done;  // they are known to differ, as to peers
    const std::vector<float> ones(keys_ * elems_, 1.0F);
    op_.values =
        std::string(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
  }
  void step() override {
    const auto result = client_.wait(client_.start(std::move(op_)));
    result.copy_rows(rows_.data(), elems_ * sizeof(float));
  }
  void check() override {
    for (size_t i = 0; i < named_.size(); ++i) {
      const float wanted = -static_cast<float>(++times_[named_[i] / workers_]);
      const std::span<const float> row = std::span(rows_).subspan(i * elems_, elems_);
      core::check(std::ranges::all_of(row, [&](float value) { return value == wanted; }),
                  "row {} is wrong", named_[i]);
    }
    std::ranges::fill(rows_, 0.0F);
  }

 private:
  ps::Client& client_;
  uint64_t worker_, workers_, keys_;
  std::vector<uint32_t> times_;  ///< by row of this worker
  size_t elems_;
  std::mt19937_64 random_;
  Steps steps_{client_};
  std::set<uint64_t> taken_;
  std::vector<uint64_t> named_;
  std::vector<float> rows_;
  ps::Client::Operation op_;
};

void work(const Options& options, const ps::JobRole& role, const ps::JobConfig& job) {
  ps::NodeOptions node = ps::node_options(role, job);
  node.connections.local = options.says("local");
  ps::Client client(std::move(node), job, role.node.index);
  Barrier barrier(role.manager + "/barrier", job.workers);
  std::unique_ptr<Task> task;
  if (options.table == "dense")
    task = std::make_unique<DenseTask>(client, options, role.node.index);
  else
    task = std::make_unique<SparseTask>(client, options, role.node.index);
  std::cout << "ready" << std::endl;
  for (uint64_t steps = 0; std::cin >> steps;) {
    std::string times;
    for (uint64_t step = 0; step < steps; ++step) {
      task->prepare();
      if (options.says("together")) barrier.wait();
      const auto began = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(options.number("pause_ms")));
      task->step();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - began;
      times += fmt::format("{}{:.1f}", step > 0 ? ", " : "", took.count());
      task->check();
    }
    std::cout << "{\"us\": [" << times << "]}" << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = read_options(argc, argv);
    const auto role = ps::role_of_environment();
    core::check(role.has_value(), "TRIREME_ROLE is not set: bench/ps starts this program");
    const ps::JobConfig job = job_of(options, *role);
    if (role->node.role == ps::Role::Worker)
      work(options, *role, job);
    else
      ps::serve(job, *role, {.listen = options.given.at("listen")});
  } catch (const Error& error) {
    fmt::print(stderr, "parameter_server: {}\n", error.what());
    return 1;
  }
}
