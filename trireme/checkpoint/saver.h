#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/checkpoint/state.h"
#include "trireme/mesh/mesh.h"

namespace trireme::format {
struct Index;
}

namespace trireme::checkpoint {

/// Writes checkpoints while training goes on.
///
///   main thread   copy this rank's share ─┐            (the only copy)
///   background                            └─> part-00001.safetensors ─> part-00001.json
///              (part-00001.alive grows as long as that takes)
///   rank 0                                      all notes there? ─> index.json ─> rename
///
/// The background threads exchange files in the folder and do not use the network, so that they
/// cannot disturb the collectives of training. Whatever fails, a checkpoint is complete or absent.
class Saver {
 public:
  struct Options {
    /// How long rank 0 waits for another rank's part without a sign of life.
    std::chrono::milliseconds patience = std::chrono::minutes(4);
    std::string after_failure =
        "training goes on";  ///< what the program does after a failure, for the warning
  };
  /// All ranks of the mesh must see the folder. Each writes what it holds; items that several ranks
  /// hold are written once. The newest `keep` checkpoints stay.
  Saver(std::string folder, const Mesh& mesh, int64_t keep, Options options);
  Saver(std::string folder, const Mesh& mesh, int64_t keep)
      : Saver(std::move(folder), mesh, keep, Options{}) {}
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Waits until the previous checkpoint is on disk, copies the state and returns. A failure is a
  /// warning, and the next `wait` returns it. Collective.
  void save(int64_t step, const State& state);

  /// Waits until the last checkpoint is on disk. Returns the reason if it could not be written.
  std::optional<std::string> wait();

  /// Waits for the current checkpoint, then sets Options::after_failure for later ones.
  void set_after_failure(std::string what);

 private:
  struct Snapshot;
  void warn(int64_t step, const std::string& why, const std::string& then) const;
  void run(Snapshot copy, std::stop_token stop);
  core::Json write_part(Snapshot& copy) const;
  std::vector<core::Json> wait_for_notes(const Snapshot& copy, const core::Json& own,
                                         const std::stop_token& stop) const;
  static format::Index index_of(const Snapshot& copy, const std::vector<core::Json>& notes);
  void join_parts(const Snapshot& copy, const core::Json& own, const std::stop_token& stop);

  std::string folder_;
  comm::Communicator group_;
  Coord coord_;
  Degrees degrees_;
  int64_t keep_;
  Options options_;
  std::mutex mutex_;
  std::optional<std::string> problem_;
  std::jthread writer_;  // last: it uses the others until it is joined
};

}  // namespace trireme::checkpoint
