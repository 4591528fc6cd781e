#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// Which of a rank's two output streams something applies to.
struct OutputStreams {
  bool out = false;
  bool err = false;
};

/// A choice of streams per local rank, written as torchrun does: "3" for all ranks, "0:1,1:3" for
/// some; 0 is neither stream, 1 stdout, 2 stderr, 3 both.
class StreamChoice {
 public:
  StreamChoice() = default;

  /// Throws ConfigError that shows `text` and says what is allowed.
  static StreamChoice parse(std::string_view text);

  OutputStreams of(int local_rank) const;
  bool any() const;

 private:
  OutputStreams all_;
  std::map<int, OutputStreams> ranks_;
};

/// Prefixed: shows the lines of every rank, with "[rank] " before them if there are several ranks,
/// or "[worker 0] " if there are roles.
/// Bare: shows only the output of local rank 0, or of the manager, unchanged; that of the others
/// only if they fail.
enum class Display { Prefixed, Bare };

/// A parameter server job: a manager, servers, and workers of RunOptions::num_ranks ranks each, all
/// the same program on this host.
struct Roles {
  int servers = 1;
  int workers = 1;
  /// Where the manager keeps its log and is found: a folder, in which a job before this one leaves
  /// nothing behind, or etcd://HOST:PORT; empty: a folder that goes with the job.
  std::string manager{};
};

/// The options of `run`. Local ranks are the ranks of this host; hosts are numbered from 0, and all
/// have the same number of ranks.
struct RunOptions {
  std::vector<std::string> command{};  ///< the program and its arguments
  int num_ranks = 1;                   ///< on this host; with roles: of each worker
  std::optional<Roles> roles{};        ///< none: a job of ranks
  int num_hosts = 1;
  int host = 0;
  std::string master_addr{};          ///< empty: 127.0.0.1, which only one host can use
  int master_port = 0;                ///< 0: a free one on one host, 29500 on several
  std::string run_id{};               ///< empty: random on one host, "trireme" on several
  std::optional<int> max_restarts{};  ///< of all ranks, or of each role; none: see `restarts`
  std::string log_dir{};              ///< empty: no log files
  StreamChoice redirects{};
  StreamChoice tee{};
  std::vector<int> shown_ranks{};  ///< local ranks whose output is shown; empty: all
  Display display = Display::Prefixed;
  std::chrono::milliseconds grace{5000};  ///< between SIGTERM and SIGKILL
  std::chrono::milliseconds interrupt_grace{
      30000};                           ///< after a signal, for ranks to save their work
  std::string speaker = "trireme run";  ///< begins the launcher's own messages
  std::vector<int>
      answers{};  ///< exit codes that are results, not failures: returned without a message

  /// Exit codes after which the same would happen again: nothing is restarted.
  std::vector<int> final_codes{2};

  /// A parameter server outlives its processes; a job of ranks starts again only if it is told to.
  int restarts() const { return max_restarts.value_or(roles ? 100 : 0); }
  int num_processes() const {
    return roles ? 1 + roles->servers + roles->workers * num_ranks : num_ranks;
  }
};

/// Throws ConfigError for options that cannot work: no program, no ranks, several hosts without the
/// address of the first, log choices without a folder, roles that nobody has.
void check_options(const RunOptions& options);

}  // namespace trireme::launch
