#include "trireme/checkpoint/resume.h"

#include <sys/stat.h>

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/format/candidates.h"
#include "trireme/format/folder.h"

namespace trireme::checkpoint {

namespace {

void warn(const std::string& sentence) {
  core::Log(0, "checkpoint").warning(sentence);
}

/// The outcome of an attempt, as a text that ranks can exchange: a mark and a sentence.
constexpr char kFine = '+', kDamaged = '-', kUnreadable = '?', kRefused = '!';

std::string outcome_of(const std::function<std::string()>& attempt) {
  try {
    return kFine + attempt();
  } catch (const ConfigError& error) {
    return std::string(1, kRefused) + error.what();
  } catch (const format::UnreadableError& error) {
    return std::string(1, kUnreadable) + error.what();
  } catch (const CheckpointError& error) {
    return std::string(1, kDamaged) + error.what();
  }
}

/// The first outcome with this mark, without the mark.
std::optional<std::string> find(const std::vector<std::string>& outcomes, char kind) {
  const auto found = std::ranges::find(outcomes, kind, [](const auto& each) { return each[0]; });
  return found == outcomes.end() ? std::nullopt : std::optional(found->substr(1));
}

/// The dtype in which a tensor was saved, if it can be converted; else the dtype of the tensor
/// itself.
at::ScalarType saved_dtype(const format::TensorSource& from, const Item& item) {
  const at::ScalarType wanted = item.tensor.scalar_type();
  const auto found = from.tensor(item.piece.name);
  if (!found || !at::isFloatingType(wanted)) return wanted;
  return floating_dtype(found->dtype).value_or(wanted);
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

}  // namespace

std::optional<format::Checkpoint> load_newest(const std::string& folder, const State& state,
                                              const comm::Communicator& group,
                                              const FitCheck& fits) {
  return load_newest(folder, group, [&](format::Checkpoint& saved) {
    if (fits) fits(saved);
    load(saved, state);
  });
}

std::optional<format::Checkpoint> load_newest(const std::string& folder,
                                              const comm::Communicator& group,
                                              const Loading& loading) {
  const bool leads = group.rank() == 0;
  std::optional<format::Candidates> candidates;
  while (true) {
    std::optional<format::Checkpoint> saved;
    std::string answer;
    if (leads) {
      answer = outcome_of([&] {
        if (!candidates) candidates.emplace(folder, warn);
        return candidates->next(saved);
      });
    }
    answer = comm::broadcast_text(group, answer, 0);
    const std::string path = answer.substr(1);
    if (answer[0] == kRefused) throw ConfigError(path);
    if (answer[0] == kUnreadable) throw format::unreadable_just_now(path);
    if (answer[0] == kDamaged) throw CheckpointError(path);
    if (path.empty()) return std::nullopt;
    const auto outcomes = comm::all_gather_texts(group, outcome_of([&] {
                                                   if (!saved) saved.emplace(path);
                                                   loading(*saved);
                                                   return std::string();
                                                 }));
    if (const auto refused = find(outcomes, kRefused)) throw ConfigError(*refused);
    if (const auto failed = find(outcomes, kUnreadable)) throw format::unreadable_just_now(*failed);
    const auto damaged = find(outcomes, kDamaged);
    if (leads && damaged) candidates->pass_over(*damaged);
    if (damaged) continue;
    if (leads) candidates->put_damaged_aside();
    return saved;
  }
}

format::Checkpoint open(const std::string& path) {
  if (!is_there(path)) throw ConfigError(fmt::format("there is no checkpoint '{}'", path));
  if (!is_there(path + "/" + format::kIndexName))
    throw ConfigError(fmt::format(
        "'{}' is not a finished checkpoint: it has no {}; name a step's folder, such as {}", path,
        format::kIndexName, format::step_name(500)));
  format::Checkpoint opened(path);
  if (const auto wrong = format::wrong_name(path, opened.index().step))
    throw ConfigError(*wrong + "; give it its own name");
  return opened;
}

void load(format::TensorSource& from, const State& state) {
  const at::NoGradGuard guard;
  for (const Item& item : state.items) {
    if (item.tensor.numel() == 0) continue;
    if (item.optional && !from.tensor(item.piece.name)) continue;
    const at::ScalarType dtype = saved_dtype(from, item);
    if (item.tensor.device().is_cpu() && item.tensor.is_contiguous() &&
        dtype == item.tensor.scalar_type()) {
      from.read(item.piece, dtype_name(dtype), item.tensor.data_ptr());
    } else {
      const at::Tensor read =
          at::empty(item.tensor.sizes(), at::TensorOptions().dtype(dtype).device(at::kCPU));
      from.read(item.piece, dtype_name(dtype), read.data_ptr());
      item.tensor.copy_(read);
    }
  }
}

}  // namespace trireme::checkpoint
