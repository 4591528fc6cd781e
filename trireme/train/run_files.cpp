#include "trireme/train/run_files.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <ctime>

#include "trireme/comm/texts.h"
#include "trireme/config/text.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/train/memory.h"

namespace trireme::train {

namespace {

std::string now_text() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

}  // namespace

RunFiles::RunFiles(const config::Config& config, const comm::Communicator& world,
                   Unfinished unfinished)
    : config_(config), folder_(config.run.dir), rank_(world.rank()), log_(nullptr, std::fclose) {
  std::string problem;
  if (rank_ == 0) {
    try {
      lock_.emplace(folder_);
      make_folders(folder_ + "/log");
      make_folders(checkpoints());
      if (unfinished == Unfinished::Remove) format::remove_leftovers(checkpoints());
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = comm::broadcast_text(world, problem, 0);
  if (!problem.empty()) throw ConfigError(problem);
  const std::string path = fmt::format("{}/log/rank-{}.log", folder_, rank_);
  log_.reset(std::fopen(path.c_str(), "a"));
  if (!log_)
    throw ConfigError(
        fmt::format("the run's folder: cannot write {}: {}", path, core::errno_text(errno)));
}

void RunFiles::begin(int64_t step) {
  if (rank_ != 0) return;
  format::write_file(folder_ + "/config.toml", config::to_toml(config_));
  const auto tell = [this](const std::string& sentence) {
    core::Log(0, "run").warning(sentence);
    log(sentence);
  };
  metrics_.emplace(folder_ + "/metrics.jsonl", step, tell);
  if (config_.log.samples) samples_.emplace(folder_ + "/samples.jsonl", step, tell);
  if (config_.log.tensorboard) events_.emplace(folder_, step, tell);
}

void RunFiles::add(const StepReport& report, const data::Order& order) {
  const std::string line = report.to_json();
  metrics_->add(report.step, line);
  if (events_) events_->add(report.step, core::parse_json(line, "the line of a step"));
  if (samples_)
    samples_->add(report.step, fmt::format(R"({{"step":{},"samples":[{}]}})", report.step,
                                           fmt::join(order.batch(report.step - 1), ",")));
}

void RunFiles::log(const std::string& what) {
  const std::string line = fmt::format("{} {}\n", now_text(), what);
  std::fwrite(line.data(), 1, line.size(), log_.get());  // on a full disk: fmt::print would throw
  std::fflush(log_.get());
}

int64_t RunFiles::pss_mib() {
  const auto now = std::chrono::steady_clock::now();
  if (now - pss_at_ > std::chrono::seconds(1)) {
    pss_at_ = now;
    pss_mib_ = train::pss_mib();
  }
  return pss_mib_;
}

}  // namespace trireme::train
