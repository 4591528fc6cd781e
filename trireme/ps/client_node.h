#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/ps/node.h"
#include "trireme/ps/storage.h"

namespace trireme::ps {

/// A worker's side: operations on tables, and tasks from the manager. An operation goes to all the
/// ranges that it concerns at once, is sent again until each has answered, follows ranges that
/// move, and is applied once.
class ClientNode : public ManagedNode {
 public:
  ClientNode(uint32_t worker, const JobConfig& job, Environment& environment)
      : ManagedNode({Role::Worker, worker}, job, environment) {}

  struct Operation {
    TableId table = 0;
    Clock clock = 0;
    uint64_t view_version = 0;  ///< as the task's reply says
    bool push = false;
    bool pull = false;  ///< with push: what the next clock reads
    Batch batch = 0;
    double weight = 1, loss = 0;
    double divisor = 1;  ///< of the values; lockstep divides by the weights that came instead
    double rate = 1;
    std::vector<uint64_t> keys = {};  ///< of a sparse table, each at most once
    /// Done: it is known that each key comes once, as those of Keys::distinct do. To look takes
    /// about as long as all else that is done to them here.
    enum class KeyCheck : uint8_t { Needed, Done } key_check = KeyCheck::Needed;
    /// A sum of gradients over samples: whole table, or rows. Rows are copied by `start`, so they
    /// may lie in memory that nobody keeps.
    Payload values = {};
    /// Only these ranges of a dense table; `values` is still the whole table. Empty: all. A clock
    /// may be pushed range by range, as gradients become complete.
    std::vector<RangeId> ranges = {};
    /// Of a pull of a dense table: who keeps its values (an address will do). Ranges that have not
    /// changed since the last pull of the table that it `has_kept` bring no values. Null: all come.
    const void* keeper = nullptr;
    /// Where a pull of a dense table puts the values of the whole table, range by range as they
    /// come, while they are in the cache. Null: they are in the result.
    std::byte* into = nullptr;
  };
  /// Consecutive values of a dense table.
  struct PulledBlock {
    RangeId range = 0;
    uint64_t begin = 0;      ///< the first element
    Payload values = {};     ///< empty if the operation says where they go
    bool unchanged = false;  ///< as the keeper has them; `values` is empty
    uint64_t version = 0;
  };
  /// Rows of a sparse table, of one range.
  struct PulledRows {
    std::vector<uint32_t> places = {};  ///< which of the operation's keys each has
    Payload values = {};
  };
  struct Result {
    std::vector<PulledBlock> blocks = {};  ///< of a pull of a dense table
    std::vector<PulledRows> rows = {};     ///< of a sparse one
    size_t repeated = 0;                   ///< ranges that had this batch from another worker
    uint64_t missed = 0;  ///< updates between the last pull and this push, of the range with most
    ClockTotals totals = {};  ///< lockstep: of the clock of a push-pull, of the one before a pull
    std::string error = {};   ///< the sentence of a refusal

    /// Copies the rows of a sparse table to where they belong, in the order of the keys. A row has
    /// so many bytes.
    void copy_rows(void* to, size_t row_bytes) const;
    /// All values in one piece, in the order of the table, or of the keys.
    std::string values() const;
  };
  using OnResult = std::function<void(Result)>;
  /// Begins an operation. If this life ends first, `on_result` is never called. A pull at some
  /// clock sees what this worker has pushed at earlier clocks, also if that is still under way.
  /// Throws MisuseError for values of another shape and for keys that cannot be.
  void start(Operation operation, OnResult on_result);

  /// Whether the work that was asked for last is of this life. A life may end while the worker
  /// computes, and another one begin: what comes of that work belongs to nobody, and servers would
  /// refuse it for ever. So a worker that is told no here asks for work.
  bool may_start() const { return has_begun_ && !lost_work_; }
  bool has_begun() const { return has_begun_; }
  /// Of a worker's other processes, instead of asking: see ManagedNode::adopt.
  void follow(Life life, const View& view) {
    adopt(life, view);
    lost_work_ = false;
  }

  /// The keeper has put these blocks of a dense table where it keeps them. Until then what has come
  /// may never get there, so all values come again.
  void has_kept(TableId table, const void* keeper, const std::vector<PulledBlock>& blocks);

  using OnTask = std::function<void(const TaskReply&)>;
  /// Asks for the next task; there may be one question at a time.
  void ask_task(std::optional<Task> done, OnTask on_task);
  /// Tells the manager what came of a batch; sent again until it is taken.
  void report(Batch batch, std::string text);
  size_t reports_in_flight() const { return reports_.size(); }

  /// Pushed rows are put together in memory of this kind, such as memory that servers of this host
  /// can read.
  void use_memory(std::shared_ptr<Memory> memory) { memory_ = std::move(memory); }

  /// Called when a life has begun, and when it is over.
  std::function<void()> on_begin;
  std::function<void()> on_end;

  void tick() override;
  size_t in_flight() const { return operations_.size(); }
  /// What the oldest operation waits for, as a line of progress; empty if there is none.
  std::string waiting_for() const;

 private:
  struct Part {
    Request request;
    std::vector<uint32_t> rows = {};  ///< sparse: which of the operation's keys
    std::vector<uint64_t> keys = {};  ///< sparse: these, if the request only names them
    bool done = false;
    Time sent_at{};  ///< first, of the times since which it may have arrived
    Time last_sent_at{}, again_at{};
    int times_sent = 0;  ///< since then
    uint64_t way = 0;    ///< Environment::way_to, when it was sent last
    Reply reply = {};
  };
  struct InFlight {
    Operation operation;
    OnResult on_result;
    Time begun_at{};
    std::map<RangeId, Part> parts = {};
  };
  struct Question {
    TaskRequest request;
    OnTask on_task;
    Time sent_at{};
  };

  void handle(Message& message) override;
  void on_view() override;
  void on_life_ended() override;
  void check(const Operation& operation) const;
  void cut_dense(InFlight& op);
  void cut_sparse(InFlight& op);
  void gather_rows(const InFlight& op, Part& part);
  void send_part(Part& part);
  Time patience() const;
  bool is_due(const Part& part) const;
  void name_keys(Part& part);
  Payload filtered(const InFlight& op, RangeId range, Payload values);
  size_t reply_bytes(const InFlight& op, const Part& part) const;
  void on_reply(Reply reply);
  void note_read(const Reply& reply, const void* keeper);
  void on_refusal(const Refusal& refusal);
  void put_values(const Operation& operation, Reply& reply) const;
  void complete(uint64_t number);

  std::shared_ptr<Memory> memory_ = std::make_shared<HeapMemory>();
  std::map<uint64_t, InFlight> operations_;
  Time usual_{};  ///< how long answers took lately
  std::optional<Question> question_;
  uint64_t next_number_ = 1;
  using TableRange = std::pair<TableId, RangeId>;
  struct LastRead {
    uint64_t version = 0;
    const void* keeper = nullptr;  ///< who has these values
  };
  std::map<TableRange, LastRead> last_reads_;
  std::map<TableRange, uint64_t> sent_keys_;            ///< the name of the last list
  std::map<TableRange, std::vector<float>> residuals_;  ///< what filters have lost so far
  struct Told {
    Report report;
    Time sent_at{};
  };
  std::map<uint64_t, Told> reports_;
  bool has_begun_ = false;
  bool lost_work_ = false;   ///< a life has ended since work was asked for
  uint32_t generation_ = 0;  ///< of this life
};

}  // namespace trireme::ps
