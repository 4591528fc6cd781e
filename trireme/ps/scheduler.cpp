// The manager's scheduler: who does which task.
//
// A worker asks for work and says what it has done. A task is handed out to one worker, again when
// that worker's life ends, and, if backups are wanted, to a second worker that would be idle
// otherwise. Whoever does it, each range takes each batch once; so a task may safely be done twice.
#include "trireme/ps/data_order.h"
#include "trireme/ps/manager.h"

namespace trireme::ps {

void Manager::on_task_request(uint32_t worker, const TaskRequest& request) {
  TaskReply answer{.life = books_.node({Role::Worker, worker})->life, .number = request.number};
  auto holding = books_.holding(worker);
  if (request.done && holding && holding->task == *request.done) {
    decide(TaskDone{*request.done, worker});
    given_at_.erase(*request.done);
    holding.reset();
  } else if (request.done && !books_.is_done(*request.done)) {
    return count("bad request");  // it does not have the task: who says what it did?
  }

  // Until it says that it has done the task, it may not know that it was given it. Then it gets the
  // same answer, even if a backup was faster: its clocks must have no gap.
  const bool repeats = holding.has_value();
  auto task = repeats ? std::optional(holding->task) : choose_task(worker);
  bool must_wait = false;
  if (task && !repeats && job_.in_lanes()) {
    const auto batches = batches_of(job_, *task);
    must_wait = order_before(lane_clock(job_, batches.front()),
                             lane_clock(job_, batches.back()) + 1) == Handing::MustWait;
  }
  if (must_wait) {
    answer.answer = Answer::Wait;
    return reply(node_of({Role::Worker, worker}), answer);
  }
  if (!task) {
    if (books_.is_active(worker) && !job_.in_lanes()) decide(WorkerIdle{worker});
    answer.answer = view_.over ? Answer::Finished : Answer::Wait;
    if (view_.over && job_.in_lanes()) answer.clock = books_.end_clock();
    return reply(node_of({Role::Worker, worker}), answer);
  }
  if (!repeats) {
    // A worker that begins takes a clock that nobody has passed yet: so no read was answered
    // without waiting for it that should have.
    const Clock clock = job_.in_lanes()            ? lane_clock(job_, batches_of(job_, *task)[0])
                        : books_.is_active(worker) ? books_.next_clock(worker)
                                                   : books_.latest_clock();
    decide(TaskGiven{*task, worker, clock});
    // Whoever had it before is dead, and a backup does not make its holder younger.
    if (books_.holders(*task).size() == 1) given_at_[*task] = environment_.now();
  }
  answer.answer = Answer::Work;
  answer.task = *task;
  answer.clock = books_.holding(worker)->clock;
  answer.view_version = view_.version;
  reply(node_of({Role::Worker, worker}), answer);
}

std::optional<Task> Manager::choose_task(uint32_t worker) const {
  for (Task task = books_.first_undone(); task < books_.num_tasks();
       task = books_.next_undone(task + 1))
    if (job_.in_lanes() ? task % job_.workers == worker : books_.holders(task).empty()) return task;
  return job_.in_lanes() ? std::nullopt : choose_backup(worker);
}

/// The task that has been in one worker's hands for longest.
std::optional<Task> Manager::choose_backup(uint32_t worker) const {
  const Time after = job_.timing.backup_after, now = environment_.now();
  if (after == Time::zero()) return {};
  std::optional<Task> chosen;
  Time chosen_since{};
  for (Task task = books_.first_undone(); task < books_.num_tasks();
       task = books_.next_undone(task + 1)) {
    const auto& holders = books_.holders(task);
    if (holders.size() != 1 || holders[0] == worker) continue;
    const auto given = given_at_.find(task);
    const Time since = given == given_at_.end() ? started_at_ : given->second;
    if (now - since < after || (chosen && since >= chosen_since)) continue;
    chosen = task;
    chosen_since = since;
  }
  return chosen;
}

}  // namespace trireme::ps
