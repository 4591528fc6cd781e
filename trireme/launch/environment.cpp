#include "trireme/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <string_view>

#include "trireme/core/error.h"
#include "trireme/launch/machine.h"

namespace trireme::launch {

namespace {

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

const char* word_of(UnitRole::Kind kind) {
  switch (kind) {
    case UnitRole::Kind::Manager: return "manager";
    case UnitRole::Kind::Server: return "server";
    default: return "worker";
  }
}

}  // namespace

std::string UnitRole::name() const {
  return kind == Kind::Manager ? "manager" : fmt::format("{} {}", word_of(kind), index);
}

std::string Job::label(int local_rank) const {
  if (!role) return std::to_string(rank(local_rank));
  return num_ranks == 1 ? role->name() : fmt::format("{}.{}", role->name(), local_rank);
}

std::vector<std::string> rank_environment(const Job& job, int local_rank) {
  auto variables = own_environment();
  const auto set = [&](const char* name, std::string value) { variables[name] = std::move(value); };

  set("RANK", std::to_string(job.rank(local_rank)));
  set("WORLD_SIZE", std::to_string(job.num_hosts * job.num_ranks));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(job.num_ranks));
  set("NODE_RANK", std::to_string(job.host));
  set("GROUP_RANK", std::to_string(job.host));
  set("GROUP_WORLD_SIZE", std::to_string(job.num_hosts));
  set("MASTER_ADDR", job.master_addr);
  set("MASTER_PORT", std::to_string(job.master_port));
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(job.attempt));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts));
  // Workers are worlds of their own, which must not meet.
  set("TORCHELASTIC_RUN_ID",
      job.role ? fmt::format("{}-{}-{}", job.run_id, word_of(job.role->kind), job.role->index)
               : job.run_id);
  if (job.role) {
    set("TRIREME_ROLE", word_of(job.role->kind));
    set("TRIREME_ROLE_INDEX", std::to_string(job.role->index));
    set("TRIREME_PS_SERVERS", std::to_string(job.role->servers));
    set("TRIREME_PS_WORKERS", std::to_string(job.role->workers));
    set("TRIREME_PS_RANKS", std::to_string(job.role->worker_ranks));
    set("TRIREME_PS_JOB", job.run_id);
    set("TRIREME_PS_MANAGER", job.role->manager);
    if (job.ends) set("TRIREME_PS_ENDS", "1");
  }
  // Inherited from an outer torchrun, it would make torch wait for a store that we do not serve.
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  if (!job.secret.empty()) set("TRIREME_SECRET", job.secret);
  if (job.colour) set("TRIREME_COLOR", "1");
  variables.try_emplace("OMP_NUM_THREADS",
                        std::to_string(std::max(1, num_cores() / job.num_busy())));

  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::string random_run_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id(12, ' ');
  for (char& letter : id) letter = kLetters[pick(device)];
  return id;
}

}  // namespace trireme::launch
