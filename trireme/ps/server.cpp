#include "trireme/ps/server.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

std::vector<std::unique_ptr<ServerLane>> all_lanes(uint32_t index, const JobConfig& job,
                                                   Environment& environment, ServerTotals& totals) {
  std::vector<std::unique_ptr<ServerLane>> lanes;
  for (uint32_t lane = 0; lane < job.lanes; ++lane)
    lanes.push_back(std::make_unique<ServerLane>(index, lane, job, environment,
                                                 std::make_shared<HeapMemory>(), totals));
  return lanes;
}

}  // namespace

Server::Server(uint32_t index, const JobConfig& job, Environment& environment,
               std::vector<std::unique_ptr<ServerLane>> lanes, std::shared_ptr<ServerTotals> totals,
               Tell others)
    : ManagedNode({Role::Server, index}, job, environment),
      totals_(std::move(totals)),
      lanes_(std::move(lanes)),
      others_(std::move(others)) {}

Server::Server(uint32_t index, const JobConfig& job, Environment& environment)
    : ManagedNode({Role::Server, index}, job, environment),
      totals_(std::make_shared<ServerTotals>()),
      lanes_(all_lanes(index, job, environment, *totals_)) {}

ServerLane& Server::lane_of(RangeId range) const {
  return *lanes_[job_.lane_of(range) % lanes_.size()];
}

const Replica* Server::replica(TableId table, RangeId range) const {
  return lane_of(range).replica(table, range);
}

void Server::tell() {
  const Standing standing{life_, view_};
  for (const auto& lane : lanes_) lane->follow(standing);
  if (others_) others_(standing);
  told_ = life_ != 0;
}

void Server::on_view() {
  tell();
}

void Server::on_life_ended() {
  environment_.note(fmt::format("server {}: life {} is over; its ranges go", id_.index, life_));
  life_ = 0;
  tell();
}

void Server::handle(Message& message) {
  if (handle_membership(message)) return;
  const RangeId range = range_of(message.body).value_or(0);
  lane_of(range < job_.ranges ? range : 0).handle(message);
}

void Server::on_saved(const SnapshotPart& part, std::string contents) {
  lane_of(part.range).on_saved(part, std::move(contents));
}

Node::Counts Server::refused() const {
  Counts all = Node::refused();
  for (const auto& lane : lanes_)
    for (const auto& [why, times] : lane->refused()) all[why] += times;
  return all;
}

Figures Server::figures() const {
  return {.bytes = totals_->bytes,
          .rows = totals_->rows,
          .pushes = totals_->pushes,
          .pulls = totals_->pulls,
          .behind = totals_->behind,
          .refused = totals_->refused,
          .pid = totals_->pid};
}

void Server::tick() {
  ManagedNode::tick();
  for (const auto& lane : lanes_) lane->tick();
}

}  // namespace trireme::ps
