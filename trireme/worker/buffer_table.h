#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/parallel/attached.h"
#include "trireme/ps/client.h"
#include "trireme/ps/training_step.h"

namespace trireme::ps {

/// The names of buffers in tables begin with it, as in all checkpoints.
constexpr const char* kBufferPrefix = "buffer/";
/// Whether a table was made by `buffer_table`.
bool holds_buffers(const TableConfig& table);

/// The table of a module's buffers, such as the running statistics of batch norm. With it in the
/// job, beside the table of the parameters, ServerParallel keeps the buffers on the servers, too:
/// every step begins with those that are there, and ends with a push of what it has made of them.
/// Without it each worker has its own, and checkpoints have none.
///
///   lockstep      the buffers of the first worker of each clock take the place of those that are
///                 there: the rule of DataParallel, where all ranks have those of the first one
///   stale, free   those of every push do
///
/// Consistency and tau should be those of the parameters. No elements: there is no such table.
TableConfig buffer_table(const torch::nn::Module& module, const std::string& name = "buffers");

/// The buffers of what a rank runs, while they live on servers.
///
///   begin    pull ──> buffers of the first rank that runs the layers ──> those of the others
///   finish   buffers of that rank ──> push
class ServedBuffers {
 public:
  /// *Collective*, over the ranks of the worker. Throws MisuseError if the job has a table of these
  /// buffers in another shape.
  ServedBuffers(const parallel::Attached& attached, const Client& client);

  /// The table that this rank pulls and pushes; none: the job has no such table, or another rank
  /// does it.
  std::optional<TableId> table() const { return table_; }

  /// What is pushed with a batch of this weight.
  Client::Operation push(Client::Operation operation, double weight) const;
  /// Takes what was pulled. The others get it by `spread`.
  void take(const Client::Result& result);
  /// *Collective*.
  void spread() const;

 private:
  struct Place {
    at::Tensor buffer;
    int64_t begin = 0;  ///< in the table
  };
  void bind(const TableConfig& table);

  const parallel::Attached& attached_;
  const JobConfig& job_;
  std::optional<TableId> table_;
  std::vector<Place> places_;
  std::optional<comm::Communicator> ranks_;  ///< that run the same layers; none: only this one
};

}  // namespace trireme::ps
