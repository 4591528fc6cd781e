#include "trireme/comm/group_backend.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "trireme/comm/program_run.h"
#include "trireme/comm/shared/collective.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

using core::OpKind;

/// Operations of at least this size wake the engine's helper.
constexpr int64_t kHelperBytes = 256 << 10;
constexpr int64_t kHugePage = 2 << 20;
constexpr auto kAskAfter = std::chrono::milliseconds(100);

/// A collective over streams.
class ProgramTask final : public Task {
 public:
  ProgramTask(LoweredOp lowered, uint64_t op_number, uint64_t fingerprint, World& world,
              const Lane& group)
      : lowered_(std::move(lowered)), fingerprint_(fingerprint), world_(world), lane_(group) {
    info = lowered_.info;
    number = op_number;
  }
  ~ProgramTask() override {
    if (run_) world_.engine().locked([&] { run_.reset(); });
  }
  Step step() override {
    if (!run_)
      run_ = std::make_unique<ProgramRun>(
          lowered_, make_program(lowered_, pick(lowered_, lane_.size()), lane_.rank, lane_.size()),
          world_.messenger(), lane_, number, fingerprint_);
    const Step step = run_->step();
    if (step == Step::Stuck && !asked_) ask_when_stuck();
    return step;
  }
  std::vector<int> missing() const override { return run_ ? run_->missing() : std::vector<int>{}; }
  bool certain() const override { return !run_ || run_->certain(); }

 private:
  LoweredOp lowered_;
  uint64_t fingerprint_;
  World& world_;
  const Lane& lane_;
  /// If nothing has come for a while, asks the missing ranks whether they mean the same operation.
  void ask_when_stuck() {
    if (std::chrono::steady_clock::now() - started < kAskAfter) return;
    asked_ = true;
    for (int peer : run_->missing()) {
      // A rank that has left has done its part. Writing to its closed socket would destroy what is
      // still in flight from it.
      if (world_.has_left(peer)) continue;
      world_.messenger().ask(peer, lane_.id, number, fingerprint_, info);
    }
  }

  std::unique_ptr<ProgramRun> run_;
  bool asked_ = false;
};

/// A send or a receive.
class TransferTask final : public Task {
 public:
  TransferTask(const LoweredOp& lowered, uint64_t op_number, World& world, const Lane& group)
      : world_(world) {
    info = lowered.info;
    number = op_number;
    ordered = false;
    transfer_.peer = group.members[static_cast<std::size_t>(lowered.info.root)];
    transfer_.data = lowered.in;
    transfer_.header.group = group.id;
    transfer_.header.key = static_cast<uint32_t>(lowered.info.tag);
    transfer_.header.bytes = static_cast<uint64_t>(lowered.bytes);
    transfer_.header.info = lowered.info;
  }
  ~TransferTask() override {
    if (posted_ && !transfer_.done)
      world_.engine().locked([&] { world_.messenger().cancel(transfer_); });
  }
  Step step() override {
    if (!posted_) {
      posted_ = true;
      if (info.kind == OpKind::Send)
        world_.messenger().send(transfer_);
      else
        world_.messenger().receive(transfer_);
    }
    return transfer_.done ? Step::Done : Step::Stuck;
  }
  std::vector<int> missing() const override { return {transfer_.peer}; }

 private:
  World& world_;
  Transfer transfer_;
  bool posted_ = false;
};

/// In a group of one an operation is a copy, or nothing.
void run_alone(const LoweredOp& lowered) {
  const OpKind kind = lowered.info.kind;
  const int64_t bytes =
      kind == OpKind::AllToAll || kind == OpKind::Scatter || kind == OpKind::ReduceScatter
          ? lowered.in_begin.back()
          : (lowered.out_begin.empty() ? 0 : lowered.out_begin.back());
  if (bytes > 0 && lowered.in != lowered.out)
    std::memmove(lowered.out, lowered.in, static_cast<std::size_t>(bytes));
}

uint64_t mix(uint64_t a, uint64_t b) {
  core::OpInfo none;
  return core::fingerprint(a, b, none) | 2;  // 0 and 1 mean something else
}

int64_t round_up(int64_t bytes) {
  const int64_t to = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + to - 1) / to * to;
}

}  // namespace

GroupBackend::GroupBackend(std::shared_ptr<World> world, std::unique_ptr<Lane> lane, Mapping memory)
    : world_(std::move(world)), lane_(std::move(lane)), timeout_(world_->options().timeout) {
  if (memory.base != nullptr)
    shared_ = std::make_unique<SharedGroup>(*world_, *lane_, std::move(memory));
  world_->add(*lane_);
}

GroupBackend::~GroupBackend() {
  world_->remove(*lane_);
}

std::shared_ptr<Task> GroupBackend::make_task(LoweredOp lowered, uint64_t number) {
  const int64_t bytes = lowered.bytes;
  const uint64_t fingerprint = core::fingerprint(lane_->id, number, lowered.info);
  std::shared_ptr<Task> task;
  if (lowered.info.kind == OpKind::Send || lowered.info.kind == OpKind::Recv) {
    task = std::make_shared<TransferTask>(lowered, number, *world_, *lane_);
  } else if (shared_) {
    task = make_shared_collective(*shared_, std::move(lowered), number, fingerprint);
  } else {
    world_->engine().locked([&] { lane_->remember(number, fingerprint, lowered.info); });
    task = std::make_shared<ProgramTask>(std::move(lowered), number, fingerprint, *world_, *lane_);
  }
  task->engine = &world_->engine();
  task->lane = lane_.get();
  task->may_need_helper = bytes >= kHelperBytes || !shared_;
  task->large = bytes >= kHelperBytes;
  if (task->may_need_helper) task->started = std::chrono::steady_clock::now();
  return task;
}

std::shared_ptr<PendingOp> GroupBackend::start(const Op& op, const core::OpInfo& info,
                                               uint64_t number) {
  LoweredOp lowered = lower(op, info, size());
  if (size() == 1) {
    run_alone(lowered);
    return nullptr;
  }
  const auto helper = lowered.bytes >= kHelperBytes || info.kind == OpKind::Send ||
                              info.kind == OpKind::Recv || !shared_
                          ? Engine::Helper::Wake
                          : Engine::Helper::Rest;
  auto task = make_task(std::move(lowered), number);
  world_->engine().start(task, helper);
  return task;
}

std::vector<std::byte> GroupBackend::exchange_bytes(std::span<const std::byte> mine,
                                                    uint64_t& number) {
  const auto each = static_cast<int64_t>(mine.size());
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size()));
  LoweredOp lowered;
  lowered.info.kind = OpKind::AllGather;
  lowered.info.dtype = core::DType::UInt8;
  lowered.info.item_bytes = 1;
  lowered.bytes = each * size();
  lowered.info.set_shape(std::array{lowered.bytes});
  lowered.info.set_name("internal");
  lowered.in = const_cast<std::byte*>(mine.data());
  lowered.out = all.data();
  for (int rank = 0; rank <= size(); ++rank) lowered.out_begin.push_back(each * rank);
  if (size() == 1) {
    std::copy(mine.begin(), mine.end(), all.begin());
    return all;
  }
  ++number;
  world_->check(*lane_, number, lowered.info);
  const auto task = make_task(std::move(lowered), number);
  world_->engine().start(task, Engine::Helper::Rest);
  world_->engine().wait(*task, timeout_);
  return all;
}

template <class T>
std::vector<T> GroupBackend::exchange(const T& mine, uint64_t& number) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(size()));
  const auto bytes = exchange_bytes(std::as_bytes(std::span(&mine, 1)), number);
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

void GroupBackend::agree(const std::string& problem, const std::string& what, uint64_t& number) {
  std::array<char, 240> mine{};
  std::copy_n(problem.begin(), std::min(problem.size(), mine.size() - 1), mine.begin());
  const auto all = exchange(mine, number);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != '\0')
      throw CommError(fmt::format("{} on '{}', rank {}: it failed on {}: {}", what, lane_->name,
                                  lane_->rank, world_->describe(lane_->members[rank]),
                                  all[rank].data()));
  }
}

std::shared_ptr<Backend> GroupBackend::split(const std::string& name, int color, int key,
                                             uint64_t& number) {
  const uint64_t place = number;
  const auto all = exchange(std::array{color, key}, number);
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)][0] == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)][1] < all[static_cast<std::size_t>(b)][1];
  });
  std::vector<int> members;
  for (int rank : ranks) members.push_back(lane_->members[static_cast<std::size_t>(rank)]);
  const int mine = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  auto lane = std::make_unique<Lane>(mix(mix(lane_->id, place), static_cast<uint64_t>(color)), name,
                                     members, mine);
  Mapping memory;
  std::string problem;
  if (shared_ && members.size() > 1) {
    try {
      memory = world_->segments()->make(lane->id, SharedGroup::bytes(lane->size()), members);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  agree(problem, fmt::format("split into '{}'", name), number);
  auto part = std::make_shared<GroupBackend>(world_, std::move(lane), std::move(memory));
  part->set_timeout(timeout_);
  return part;
}

std::shared_ptr<Backend> GroupBackend::alone(const std::string& name) {
  // No message carries this id; it only has to be unique on this rank.
  auto lane = std::make_unique<Lane>(
      world_->next_lone_id(), name,
      std::vector<int>{lane_->members[static_cast<std::size_t>(lane_->rank)]}, 0);
  auto group = std::make_shared<GroupBackend>(world_, std::move(lane), Mapping{});
  group->set_timeout(timeout_);
  return group;
}

/// Returns the ids that all ranks have offered. `most`: the longest offer of any rank.
std::vector<uint64_t> GroupBackend::free_everywhere(const std::vector<uint64_t>& offered,
                                                    std::size_t most, uint64_t& number) {
  if (most == 0) return {};
  std::vector<uint64_t> mine = offered;
  mine.resize(most);  // 0 is no id
  const auto bytes = exchange_bytes(std::as_bytes(std::span(mine)), number);
  std::vector<uint64_t> all(bytes.size() / sizeof(uint64_t));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  std::map<uint64_t, int> offers;
  for (const uint64_t id : all) ++offers[id];
  std::vector<uint64_t> free;
  for (const auto& [id, ranks] : offers) {
    if (id != 0 && ranks == size()) free.push_back(id);
  }
  return free;
}

/// Makes new memory for all ranks of the group.
void GroupBackend::make_memory(uint64_t id, const std::vector<int64_t>& wanted, uint64_t& number) {
  MemoryPool::Allocation fresh;
  fresh.begin.push_back(0);
  for (int64_t part : wanted) fresh.begin.push_back(fresh.begin.back() + part);
  std::string problem;
  try {
    fresh.mapping =
        world_->segments()->make(id, static_cast<std::size_t>(fresh.bytes()), lane_->members);
    // Added before `agree`: the first rank that leaves `agree` may use the memory at once.
    world_->engine().locked([&] { world_->segments()->add(id, fresh.mapping, lane_->members); });
  } catch (const std::exception& error) {
    problem = error.what();
  }
  try {
    agree(problem,
          fmt::format("allocate {}",
                      core::format_bytes(wanted[static_cast<std::size_t>(lane_->rank)])),
          number);
  } catch (...) {
    world_->engine().locked([&] { world_->segments()->remove(id); });
    throw;
  }
  world_->pool().add(lane_->members, id, std::move(fresh));
}

std::shared_ptr<std::byte> GroupBackend::allocate(int64_t bytes, at::Device device,
                                                  uint64_t& number) {
  if (!shared_ || !takes(device)) return nullptr;
  struct AllocationRequest {
    int64_t bytes;
    std::size_t offers;
  };
  const auto& ranks = lane_->members;
  MemoryPool& pool = world_->pool();
  const uint64_t id = mix(mix(lane_->id, number), 0xA110C);
  std::vector<int64_t> wanted;
  std::shared_ptr<std::byte> user;
  {
    const MemoryPool::Offer offer(pool, ranks);
    std::size_t most = 0;
    for (const AllocationRequest& request :
         exchange(AllocationRequest{round_up(std::max<int64_t>(bytes, 1)), offer.ids().size()},
                  number)) {
      wanted.push_back(request.bytes);
      most = std::max(most, request.offers);
    }
    const auto free = free_everywhere(offer.ids(), most, number);
    if (const uint64_t old = pool.find(ranks, free, wanted)) {
      user = pool.use(ranks, old, rank());
    } else {
      for (const uint64_t forgotten : pool.trim(ranks, free))
        world_->engine().locked([&] { world_->segments()->remove(forgotten); });
    }
  }
  if (!user) {
    make_memory(id, wanted, number);
    user = pool.use(ranks, id, rank());
  }
  // The owner touches it first, now rather than in the first step. Then ask for large pages.
  std::memset(user.get(), 0, static_cast<std::size_t>(wanted[static_cast<std::size_t>(rank())]));
  if (bytes >= kHugePage) ::madvise(user.get(), static_cast<std::size_t>(bytes), MADV_COLLAPSE);
  return user;
}

void GroupBackend::step() {
  world_->engine().watch();  // whoever polls must also hear of a failure
}

void GroupBackend::abort(const std::string& why) noexcept {
  try {
    world_->abort(why);
  } catch (...) {
  }
}

void GroupBackend::abandon() noexcept {
  try {
    world_->abandon();
  } catch (...) {
  }
}

void GroupBackend::check(const core::OpInfo& info, uint64_t number) {
  world_->check(*lane_, number, info);
}

Traffic GroupBackend::traffic() const {
  return world_->traffic();
}

}  // namespace trireme::comm
