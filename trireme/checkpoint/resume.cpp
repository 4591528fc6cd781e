#include "trireme/checkpoint/resume.h"

#include <ATen/ops/empty.h>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/folder.h"
#include "trireme/format/verify.h"

namespace trireme::checkpoint {

namespace {

/// On one rank: the path, or empty.
std::string newest_whole(const std::string& folder) {
  const auto steps = format::list(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = folder + "/" + format::step_name(*step);
    const auto damage = format::find_damage(path);
    if (damage.empty()) return path;
    core::Log(0, "checkpoint")
        .warning(fmt::format("{} is damaged and passed over: {}", path, damage.front().sentence));
  }
  return "";
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
