#pragma once

#include <string>
#include <vector>

#include "sim/history.h"
#include "sim/world.h"
#include "trireme/ps/job.h"

namespace trireme::sim {

/// One seed's job, weather and misfortunes.
struct Scenario {
  uint64_t seed = 0;
  ps::JobConfig job = {};
  Weather weather = {};
  bool last_snapshot = false;  ///< the job ends with one
  bool push_pull = false;      ///< workers push and read the next clock in one operation
  uint32_t slow_workers = 0;   ///< the first ones take 8 times as long
  Time step = std::chrono::milliseconds(8);
  size_t crashes = 0;
  size_t partitions = 0;
  size_t falls = 0;          ///< a head loses its successor, and it and a worker crash soon after
  double lose_power = 0;     ///< how often the manager dies at a write to its log
  bool blackout = false;     ///< all servers crash at once
  bool server_dies = false;  ///< and does not come back
  bool worker_dies = false;
  bool joins = false;                           ///< one more server comes
  bool leaves = false;                          ///< and one goes
  Time manager_leaves{}, manager_returns{};     ///< if not 0: it is away in between
  Time storm = std::chrono::milliseconds(600);  ///< when the misfortunes end
};

/// The tables of every scenario.
constexpr ps::TableId kLedger = 0, kCounters = 1, kWeights = 2;
constexpr uint64_t kKeys = 3;
constexpr uint64_t kWeightElems = 24;

Scenario make_scenario(uint64_t seed, ps::Plant plant = ps::Plant::None);
std::string describe(const Scenario& scenario);

/// Which promise was broken, and how.
enum class Promise {
  Kept,
  Once,
  Owner,
  Monotonic,
  OwnWrites,
  Bound,
  Work,
  Exact,
  Linear,
  Same,
  Copies,
  Progress
};
struct Breach {
  Promise promise;
  std::string sentence;
};
const char* name_of(Promise promise);

struct Outcome {
  std::vector<Breach> breaches = {};
  uint64_t events = 0;
  uint64_t rollbacks = 0;
  uint64_t restored = 0;  ///< whether the last of them was to a snapshot, not to the beginning
  uint64_t crashes = 0;
  uint64_t epochs = 0;  ///< how often ranges changed hands
  uint64_t writes = 0, reads = 0;
  uint64_t repeated = 0;  ///< pushes of batches that another worker had done
  uint64_t refused = 0;
  uint64_t snapshots = 0;
  uint64_t partitions = 0, falls = 0, joins = 0, departures = 0;
  Happenings happened = {};
  uint64_t writes_without_manager = 0;  ///< begun and acknowledged while it was away
};

Outcome simulate(const Scenario& scenario);

}  // namespace trireme::sim
