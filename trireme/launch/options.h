#pragma once

#include <chrono>
#include <map>
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

/// Prefixed: shows the lines of every rank, with "[rank] " before them if there are several ranks.
/// Bare: shows only the output of local rank 0, unchanged; that of the others only if they fail.
enum class Display { Prefixed, Bare };

/// The options of `run`. Local ranks are the ranks of this host; hosts are numbered from 0, and all
/// have the same number of ranks.
struct RunOptions {
  std::vector<std::string> command{};  ///< the program and its arguments
  int num_ranks = 1;                   ///< on this host
  int num_hosts = 1;
  int host = 0;
  std::string master_addr{};  ///< empty: 127.0.0.1, which only one host can use
  int master_port = 0;        ///< 0: a free one on one host, 29500 on several
  std::string run_id{};       ///< empty: random on one host, "trireme" on several
  int max_restarts = 0;
  std::string log_dir{};  ///< empty: no log files
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
};

/// Throws ConfigError for options that cannot work: no program, no ranks, several hosts without the
/// address of the first, log choices without a folder.
void check_options(const RunOptions& options);

}  // namespace trireme::launch
