#include "trireme/checkpoint/resume.h"

#include <ATen/ops/empty.h>

#include <cstdio>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/folder.h"
#include "trireme/format/verify.h"

namespace trireme::checkpoint {

namespace {

/// On one rank: the path, or empty. Damaged ones that are newer are put aside, as step-N.damaged:
/// they must not count among those that are kept, nor be taken for the run's future.
std::string newest_whole(const std::string& folder) {
  const auto steps = format::list(folder);
  std::vector<std::string> damaged;
  std::string first;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = folder + "/" + format::step_name(*step);
    const auto damage = format::find_damage(path);
    if (damage.empty()) {
      for (const std::string& other : damaged)
        ::rename(other.c_str(), (other + ".damaged").c_str());
      return path;
    }
    if (first.empty()) first = damage.front().sentence;
    damaged.push_back(path);
    core::Log(0, "checkpoint")
        .warning(fmt::format("{} is damaged and passed over: {}", path, damage.front().sentence));
  }
  if (damaged.empty()) return "";
  throw CheckpointError(
      fmt::format("none of the {} checkpoints in {} is whole ({}); remove them to start over",
                  damaged.size(), folder, first));
}

}  // namespace

std::optional<std::string> find_newest(const std::string& folder, const comm::Communicator& group) {
  std::string answer;
  if (group.rank() == 0) {
    try {
      answer = "+" + newest_whole(folder);
    } catch (const std::exception& error) {
      answer = std::string("-") + error.what();
    }
  }
  answer = comm::broadcast_text(group, answer, 0);
  if (answer[0] == '-') throw CheckpointError(answer.substr(1));
  if (answer.size() == 1) return std::nullopt;
  return answer.substr(1);
}

void load(format::Checkpoint& from, const State& state) {
  const at::NoGradGuard guard;
  for (const Item& item : state.items) {
    const auto dtype = dtype_name(item.tensor.scalar_type());
    if (item.tensor.device().is_cpu() && item.tensor.is_contiguous()) {
      from.read(item.piece, dtype, item.tensor.data_ptr());
    } else {
      const at::Tensor read =
          at::empty(item.tensor.sizes(), item.tensor.options().device(at::kCPU));
      from.read(item.piece, dtype, read.data_ptr());
      item.tensor.copy_(read);
    }
  }
}

}  // namespace trireme::checkpoint
