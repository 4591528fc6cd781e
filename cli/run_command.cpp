#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/launch/machine.h"
#include "trireme/launch/run.h"
#include "trireme/launch/spawn.h"

namespace trireme::cli {

namespace {

constexpr const char* kRunPurpose =
    "Starts N ranks of any program on this host and watches them.\n"
    "Each gets its rank in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the rest "
    "of\n"
    "torchrun's variables. When one fails, its last lines are shown, the others are stopped, and "
    "its\n"
    "exit code is passed on. No rank is left behind, however this command ends.\n"
    "With --servers and --workers it starts a manager, servers and workers instead; one that fails "
    "is\n"
    "started again alone.";

constexpr const char* kRunExamples =
    "Options come before PROGRAM; what follows it goes to the program. Each has its PET_ variable, "
    "as\n"
    "with torchrun: PET_NPROC_PER_NODE=4. Underscores may replace dashes. torchrun's\n"
    "--rdzv-backend, --rdzv-conf, --role, --start-method, --monitor-interval and --local-addr are\n"
    "accepted and change nothing.\n\n"
    "  trireme run -n 4 ./my_program --its-option\n"
    "  trireme run -n gpu --max-restarts 3 --log-dir logs ./my_program\n"
    "  trireme run -n 2 train.py                                      (runs it with python3)\n"
    "  trireme run --servers 2 --workers 4 ./my_program               (TRIREME_ROLE says which)\n"
    "  trireme run --nnodes 2 --node-rank 1 --master-addr a -n 4 ./my_program   (on each host)\n\n"
    "First Ctrl-C or SIGTERM: passed on to the ranks, or to the manager, which ends the job at the "
    "end of\n"
    "a step; they may take 30 s. Second: they are killed.";

/// The options as they were typed, before they are interpreted.
struct TypedOptions {
  std::string ranks = "1", hosts = "1", redirects, tee, filter, endpoint, backend, ignored;
  std::string manager;
  std::optional<int> servers, workers;
  int host = -1;
  bool standalone = false, no_python = false, module = false;
};

void describe_job(Arguments& arguments, TypedOptions& typed, launch::RunOptions& options) {
  arguments.section("Ranks");
  arguments.value("-n,--nproc-per-node", typed.ranks,
                  "ranks on this host: a number, cpu, gpu, or auto (gpu if there is one)",
                  "PET_NPROC_PER_NODE");
  arguments.value("--max-restarts", options.max_restarts,
                  "how often to start all ranks again after a failure (0), or each role (100)",
                  "PET_MAX_RESTARTS");
  arguments.flag("--no-python", typed.no_python, "do not run a program named *.py with python3",
                 "PET_NO_PYTHON");
  arguments.flag("-m,--module", typed.module, "PROGRAM is a Python module, as in python3 -m",
                 "PET_MODULE");

  arguments.section("Parameter server (all on this host, all run PROGRAM)");
  arguments.value("--servers", typed.servers, "how many servers");
  arguments.value("--workers", typed.workers, "how many workers, of -n ranks each");
  arguments.value("--manager", typed.manager,
                  "folder of the manager's log, or etcd://HOST:PORT (a folder in /tmp)");

  arguments.section("Several hosts (run the command on each)");
  arguments.value("--nnodes", typed.hosts, "how many hosts", "PET_NNODES");
  arguments.value("--node-rank", typed.host, "which of them this is, from 0", "PET_NODE_RANK");
  arguments.value("--master-addr", options.master_addr, "address of host 0", "PET_MASTER_ADDR");
  arguments.value("--master-port", options.master_port,
                  "port that rank 0 listens on (a free one; 29500 with several hosts)",
                  "PET_MASTER_PORT");
  arguments.flag("--standalone", typed.standalone, "one host, any free port (the default)",
                 "PET_STANDALONE");
  arguments.value("--rdzv-id", options.run_id, "name of the run", "PET_RDZV_ID");
  arguments.value("--rdzv-endpoint", typed.endpoint, "HOST[:PORT], for --master-addr and -port",
                  "PET_RDZV_ENDPOINT");
}

void describe_output(Arguments& arguments, TypedOptions& typed, launch::RunOptions& options) {
  arguments.section("Output");
  arguments.value("--log-dir", options.log_dir,
                  "also write DIR/RUN/attempt_A/RANK/stdout.log and stderr.log", "PET_LOG_DIR");
  arguments.value("-r,--redirects", typed.redirects,
                  "write these only to files: 1 stdout, 2 stderr, 3 both; per rank: 0:1,1:3",
                  "PET_REDIRECTS");
  arguments.value("-t,--tee", typed.tee, "write these to files and show them", "PET_TEE");
  arguments.value("--local-ranks-filter", typed.filter, "show only these local ranks: 0,2",
                  "PET_LOCAL_RANKS_FILTER");

  arguments.section(Arguments::kHidden);  // torchrun's, without effect here
  arguments.value("--rdzv-backend", typed.backend, "", "PET_RDZV_BACKEND");
  for (const char* name :
       {"--rdzv-conf", "--role", "--start-method", "--monitor-interval", "--local-addr"})
    arguments.value(name, typed.ignored, "");
}

std::optional<launch::Roles> roles_of(const TypedOptions& typed) {
  if (!typed.servers && !typed.workers) {
    if (!typed.manager.empty())
      throw ConfigError(
          fmt::format("--manager {} needs --servers and --workers: a job of ranks has no manager",
                      typed.manager));
    return {};
  }
  if (!typed.workers)
    throw ConfigError(fmt::format("--servers {} needs --workers: how many workers train with them",
                                  *typed.servers));
  if (!typed.servers)
    throw ConfigError(
        fmt::format("--workers {} needs --servers: how many servers hold the parameters; ranks "
                    "without servers are -n {}",
                    *typed.workers, *typed.workers));
  return launch::Roles{
      .servers = *typed.servers, .workers = *typed.workers, .manager = typed.manager};
}

std::vector<int> parse_ranks_list(const std::string& text) {
  std::vector<int> ranks;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const auto rank = core::parse_int(std::string_view(text).substr(begin, comma - begin));
    if (!rank)
      throw ConfigError(fmt::format("--local-ranks-filter '{}': write ranks, as in 0,2", text));
    ranks.push_back(static_cast<int>(*rank));
    begin = comma + 1;
  }
  return ranks;
}

/// "2", or torchrun's "2:2". A wider range asks for elastic runs, which this launcher does not
/// have.
int parse_num_hosts(const std::string& text) {
  const size_t colon = text.find(':');
  const auto least = core::parse_int(text.substr(0, colon));
  const auto most = colon == text.npos ? least : core::parse_int(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *least > 1'000'000)
    throw ConfigError(fmt::format("--nnodes '{}' is not a number of hosts", text));
  if (*least != *most)
    throw ConfigError(fmt::format("--nnodes '{}': the number of hosts cannot vary here", text));
  return static_cast<int>(*least);
}

/// HOST, HOST:PORT or [V6]:PORT. --master-addr and --master-port take precedence.
void apply_endpoint(std::string endpoint, launch::RunOptions& options) {
  const size_t colon = endpoint.rfind(':');
  const bool several = endpoint.find(':') != colon;
  if (colon != endpoint.npos && (!several || endpoint.find("]:") != endpoint.npos)) {
    const auto port = core::parse_int(endpoint.substr(colon + 1));
    if (!port || *port < 0 || *port > 65535)
      throw ConfigError(fmt::format("--rdzv-endpoint '{}' is not HOST:PORT", endpoint));
    if (options.master_port == 0) options.master_port = static_cast<int>(*port);
    endpoint.resize(colon);
  }
  if (endpoint.starts_with('[') && endpoint.ends_with(']'))
    endpoint = endpoint.substr(1, endpoint.size() - 2);
  if (options.master_addr.empty()) options.master_addr = endpoint;
}

void apply(const TypedOptions& typed, launch::RunOptions& options) {
  options.num_ranks = launch::parse_num_ranks(typed.ranks);
  options.roles = roles_of(typed);
  options.num_hosts = parse_num_hosts(typed.hosts);
  if (typed.standalone && options.num_hosts > 1)
    throw ConfigError(fmt::format("--standalone is one host, --nnodes says {}", options.num_hosts));
  if (!typed.backend.empty() && typed.backend != "static" && typed.backend != "c10d")
    throw ConfigError(fmt::format(
        "--rdzv-backend {} is not supported; leave it out, and name host 0 with --master-addr",
        typed.backend));
  if (!typed.endpoint.empty() && !typed.standalone) apply_endpoint(typed.endpoint, options);
  if (options.num_hosts > 1 && typed.host < 0)
    throw ConfigError(fmt::format("--nnodes {} needs --node-rank: 0 to {}, different on each host",
                                  options.num_hosts, options.num_hosts - 1));
  options.host = std::max(0, typed.host);
  if (!typed.redirects.empty()) options.redirects = launch::StreamChoice::parse(typed.redirects);
  if (!typed.tee.empty()) options.tee = launch::StreamChoice::parse(typed.tee);
  options.shown_ranks = parse_ranks_list(typed.filter);
}

void add_python(const TypedOptions& typed, std::vector<std::string>& command) {
  const bool script = !command.empty() && command[0].ends_with(".py") && !typed.no_python;
  if (typed.module) command.insert(command.begin(), {"python3", "-u", "-m"});
  if (script && !typed.module) command.insert(command.begin(), {"python3", "-u"});
}

/// `trireme run ... trireme train ...` from a checkout, whose programs are not on PATH.
void find_beside(std::string& program) {
  if (program != "trireme") return;
  try {
    launch::find_program(program);
  } catch (const launch::StartError&) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error) program = self.string();
  }
}

}  // namespace

int run_command(const std::vector<std::string>& args) {
  TypedOptions typed;
  launch::RunOptions options;
  Arguments arguments("trireme run", kRunPurpose);
  arguments.usage("[OPTIONS] [--] PROGRAM [ARG]...");
  arguments.footer(kRunExamples);
  describe_job(arguments, typed, options);
  describe_output(arguments, typed, options);

  options.command = arguments.parse_until_program(args);
  if (options.command.empty())
    throw ConfigError("no program was given ('trireme run --help' shows how)");
  apply(typed, options);
  add_python(typed, options.command);
  find_beside(options.command[0]);
  return launch::run(options);
}

}  // namespace trireme::cli
