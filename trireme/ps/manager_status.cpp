#include "trireme/core/json.h"
#include "trireme/ps/data_order.h"
#include "trireme/ps/manager.h"

namespace trireme::ps {

namespace {

core::Json json_of(const Figures& now, const Figures& before, double seconds) {
  const auto rate = [&](uint64_t later, uint64_t earlier) {
    return seconds > 0 && later >= earlier ? static_cast<double>(later - earlier) / seconds : 0.0;
  };
  return {{"bytes", now.bytes},
          {"rows", now.rows},
          {"pushes", now.pushes},
          {"pulls", now.pulls},
          {"pushes_per_s", rate(now.pushes, before.pushes)},
          {"pulls_per_s", rate(now.pulls, before.pulls)},
          {"behind", now.behind},
          {"refused", now.refused},
          {"pid", now.pid}};
}

}  // namespace

std::string Manager::status() const {
  core::Json json = {{"job", job_.name},
                     {"generation", view_.generation},
                     {"view", view_.version},
                     {"copies", job_.copies},
                     {"servers", job_.servers},
                     {"workers", job_.workers},
                     {"worker_ranks", job_.worker_ranks},
                     {"tasks", {{"done", books_.num_done()}, {"all", books_.num_tasks()}}},
                     {"steps_done", books_.steps_done()},
                     {"steps", job_.batches() / job_.workers},
                     {"snapshot", books_.snapshot().snapshot},
                     {"nodes", core::Json::array()},
                     {"ranges", core::Json::array()}};
  for (const auto& [id, record] : books_.nodes()) {
    core::Json node = {{"name", name_of(id)}, {"life", record.life}, {"lives", record.lives}};
    if (record.leaves) node["leaves"] = true;
    if (const auto heard = heard_.find(id); heard != heard_.end()) {
      const Hearing& last = heard->second;
      const double seconds = static_cast<double>((last.figures_at - last.before_at).count()) / 1e6;
      node["silent_ms"] = (environment_.now() - last.last).count() / 1000;
      if (id.role == Role::Server)
        node["figures"] = json_of(last.figures, last.before, last.before_at > Time{} ? seconds : 0);
    }
    if (id.role == Role::Worker) {
      node["clock"] = books_.next_clock(id.index);
      if (const auto holding = books_.holding(id.index)) node["task"] = holding->task;
    }
    json["nodes"].push_back(std::move(node));
  }
  for (RangeId range = 0; range < job_.ranges; ++range) {
    const Assignment& assignment = view_.ranges[range];
    core::Json chain = core::Json::array();
    for (const Member member : assignment.chain) chain.push_back(member.index);
    core::Json one = {{"range", range}, {"epoch", assignment.epoch}, {"chain", std::move(chain)}};
    if (assignment.joiner) one["joins"] = assignment.joiner->index;
    json["ranges"].push_back(std::move(one));
  }
  return json.dump();
}

}  // namespace trireme::ps
