#include "trireme/ps/server_process.h"

#include <unistd.h>

#include "trireme/ps/arena.h"

namespace trireme::ps {

ServerProcess::ServerProcess(const NodeOptions& options, const JobConfig& job, uint32_t index) {
  totals_->pid = static_cast<uint64_t>(::getpid());
  const auto arena = std::make_shared<Arena>();
  std::vector<Endpoint> endpoints;
  for (uint32_t lane = 0; lane < job.lanes; ++lane) {
    NodeOptions own = options;
    own.connections.me = {{Role::Server, index}, lane};
    own.connections.arena = arena;
    threads_.push_back(std::make_unique<NodeThread>(std::move(own)));
    endpoints.push_back(threads_.back()->endpoint());
  }
  const auto make_lane = [&](uint32_t lane, Environment& environment) {
    return std::make_unique<ServerLane>(index, lane, job, environment, arena, *totals_);
  };
  // The others first: lane 0 tells them what the manager says.
  for (uint32_t lane = job.lanes - 1; lane > 0; --lane)
    threads_[lane]->start([&](Environment& environment) { return make_lane(lane, environment); });
  const auto tell_others = [this](const Standing& standing) {
    for (size_t lane = 1; lane < threads_.size(); ++lane)
      threads_[lane]->call([&](Node& node) { static_cast<ServerLane&>(node).follow(standing); });
  };
  threads_[0]->start([&](Environment& environment) {
    std::vector<std::unique_ptr<ServerLane>> own;
    own.push_back(make_lane(0, environment));
    auto server =
        std::make_unique<Server>(index, job, environment, std::move(own), totals_, tell_others);
    server->set_endpoints(endpoints);
    return server;
  });
}

void ServerProcess::leave() {
  threads_[0]->call([](Node& node) { static_cast<Server&>(node).leave(); });
}

bool ServerProcess::may_stop() {
  bool may = false;
  threads_[0]->call([&](Node& node) { may = static_cast<Server&>(node).may_stop(); });
  return may;
}

std::exception_ptr ServerProcess::failure() const {
  for (const auto& thread : threads_)
    if (const auto failure = thread->failure()) return failure;
  return nullptr;
}

}  // namespace trireme::ps
