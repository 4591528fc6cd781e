// Every command that the documents and the help texts print is run, as printed. Each page gets a
// folder of its own, where build/, configs/ and a finished run lie as in a checkout; its commands
// run in the order of the page. The configurations there are shrunk, so that a run is two steps of
// a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>
#include <thread>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

const std::string kSource = TRIREME_SOURCE_DIR, kBuild = TRIREME_BINARY_DIR;

/// What is printed and cannot be run here, and why.
const std::pair<const char*, const char*> kNotRun[] = {
    {"make train", "it builds; timed by hand on a bare machine"},
    {"make test", "it runs this test"},
    {"make bench", "it measures for minutes"},
    {"bench/", "it measures for minutes"},
    {"against_mpi", "it measures against Open MPI, which may not be there"},
    {"against_nccl", "it measures against NCCL and needs GPUs"},
    {"build/bin/schedules", "it measures, and tests do not build it"},
    {"cmake ", "install_test.cpp does it with other paths"},
    {"~/trireme/bin/", "install_test.cpp does it with other paths"},
    {"--nnodes 2", "it needs two hosts; hosts_test.cpp makes them"},
    {"-n gpu", "it needs a GPU"},
    {"trireme ps status", "it needs a job that runs; roles_test.cpp asks one"},
    {"trireme ps join", "it needs a job that runs; roles_test.cpp joins one"},
    {"ckpt merge PATH", "it needs a run with adapters; docs/finetuning.md makes one"},
    {"--bytes 64M --repeat 1000", "it runs until a rank is killed; failure_e2e_test.cpp kills one"},
};

/// What the placeholders of a page stand for.
const std::pair<const char*, const char*> kPlaceholders[] = {{"CONFIG", "configs/gpt-small.toml"},
                                                             {"PATH", "runs/gpt-small"},
                                                             {"A", "runs/gpt-small"},
                                                             {"B", "runs/other"},
                                                             {"FILE", "data/tokens.bin"},
                                                             {"FOLDER", "/tmp"},
                                                             {"HF_FOLDER", "runs/hf"},
                                                             {"PROGRAM", "./my_program"},
                                                             {"COMMAND", "train"},
                                                             {"NAME", "1f1b"},
                                                             {"P", "2"},
                                                             {"M", "4"},
                                                             {"N", "2"}};

/// A page that is run from its first command to its last.
using Pages = std::map<std::string, std::vector<std::string>>;

std::string page_text(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool is_command(const std::string& line) {
  static const std::regex form(
      "([A-Z_]+=\\S+ "
      ")*(build/bin/\\S+|~/trireme/bin/trireme|bench/[a-z]+|trireme|make|cmake|mpirun|"
      "openssl|source)( .*)?");
  static const std::regex message("trireme [a-z]+: .*");
  return std::regex_match(line, form) && !std::regex_match(line, message);
}

/// A line of a block, without its prompt, its comment and what a help text says beside it.
std::string command_in(std::string line) {
  line = std::regex_replace(line, std::regex("^(host [a-z])?\\$ "), "");
  if (!is_command(line)) return "";
  line = std::regex_replace(line, std::regex("   *(#|\\(|[a-z]).*$"), "");
  // What only shows the form of a command: "[OPTIONS]", "...", "a|b". A value in quotes is none.
  const std::string form = std::regex_replace(line, std::regex("'[^']*'"), "");
  return form.find_first_of("[|") == form.npos && form.find("...") == form.npos ? line : "";
}

void add_lines(std::vector<std::string>& commands, const std::string& text,
               const std::string& indent) {
  std::istringstream lines(text);
  bool fenced = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    while (line.ends_with("\\")) {  // continued
      std::string next;
      std::getline(lines, next);
      line = line.substr(0, line.size() - 1) + next.substr(next.find_first_not_of(' '));
    }
    if (fenced || !line.starts_with(indent) || line.starts_with(indent + " ")) continue;
    if (const std::string found = command_in(line.substr(indent.size())); !found.empty())
      commands.push_back(found);
  }
}

/// `build/bin/...` inside a sentence, and `trireme ...` where it has arguments.
void add_inline(std::vector<std::string>& commands, const std::string& text) {
  static const std::regex form("`(build/bin/[^`\n]*[^`/\n]|trireme [^`\n]*(?: -|[/=])[^`\n]*)`");
  for (std::sregex_iterator at(text.begin(), text.end(), form), end; at != end; ++at)
    if (const std::string found = command_in((*at)[1]); !found.empty()) commands.push_back(found);
}

Pages pages_of_documents() {
  Pages pages;
  std::vector<fs::path> files = {kSource + "/README.md", kSource + "/CONTRIBUTING.md"};
  for (const auto& entry : fs::directory_iterator(kSource + "/docs")) files.push_back(entry);
  for (const auto& entry : fs::recursive_directory_iterator(kSource + "/trireme"))
    if (entry.path().filename() == "README.md") files.push_back(entry);
  for (const fs::path& file : files) {
    auto& commands = pages[fs::relative(file, kSource)];
    add_lines(commands, page_text(file), "    ");
    add_inline(commands, page_text(file));
  }
  return pages;
}

Pages pages_of_help() {
  Pages pages;
  const auto add = [&](std::vector<std::string> args) {
    std::string title = "trireme";
    for (const std::string& word : args) title += " " + word;
    args.insert(args.begin(), kTrireme);
    const auto help = run_command(args);
    EXPECT_EQ(help.code, 0) << title;
    // A list of commands has what each does before its example.
    const std::string text =
        std::regex_replace(help.out, std::regex("\n  [a-z]+ .*  +(trireme [^\n]*)"), "\n  $1");
    add_lines(pages[title], text, "  ");
    return text;
  };
  const std::string list = add({"--help"});
  std::istringstream lines(run_command({kTrireme, "--help"}).out);
  for (std::string line; std::getline(lines, line);) {
    static const std::regex form("  ([a-z]+) +[a-z].*");
    std::smatch name;
    if (std::regex_match(line, name, form) && name[1] != "trireme") add({name[1], "--help"});
  }
  return pages;
}

/// A folder that looks like a checkout after `make train`.
void furnish(const std::string& folder, const std::string& runs) {
  fs::create_directories(folder + "/configs");
  fs::create_directories(folder + "/data");
  std::ofstream(folder + "/data/tokens.bin") << std::string(2000, '\1');
  fs::create_directory_symlink(kBuild, folder + "/build");
  fs::create_symlink(kBuild + "/bin/01_hello_ranks", folder + "/my_program");
  fs::create_symlink(kBuild + "/bin/01_hello_ranks", folder + "/app");
  std::ofstream(folder + "/train.py") << "print('hello')\n";
  const std::pair<const char*, const char*> smaller[] = {
      {"steps", "2"}, {"hidden", "32"}, {"seq", "16"}, {"samples", "256"}};
  for (const auto& entry : fs::directory_iterator(kSource + "/configs")) {
    std::string text = page_text(entry);
    if (entry.path().filename() != "gpt2-124m.toml")  // only looked at
      for (const auto& [key, value] : smaller)
        text = std::regex_replace(text, std::regex("\n" + std::string(key) + " = \\d+"),
                                  "\n" + std::string(key) + " = " + value);
    std::ofstream(folder + "/configs/" + entry.path().filename().string()) << text;
  }
  if (!runs.empty()) fs::copy(runs, folder + "/runs", fs::copy_options::recursive);
}

CommandResult run_in(const std::string& folder, const std::string& command) {
  return run_command({"bash", "-c", "cd \"$1\" && eval \"$2\"", "bash", folder, command},
                     {.environment = {{"PATH", kBuild + "/bin:" + std::getenv("PATH")},
                                      {"HOME", folder},
                                      {"OMP_NUM_THREADS", "1"},
                                      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
                      .deadline = std::chrono::seconds(120)});
}

std::string filled(std::string command, int number) {
  for (const auto& [name, value] : kPlaceholders)
    command = std::regex_replace(command, std::regex("(^| )" + std::string(name) + "($| )"),
                                 "$01" + std::string(value) + "$02");
  return std::regex_replace(command, std::regex(" OUT($| )"),
                            " out-" + std::to_string(number) + "$1");
}

/// Mistakes that are made on purpose are found.
int expected_code(const std::string& command) {
  return command.find("--plant") != command.npos ? 3 : 0;
}

class DocumentedCommands : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<Scratch>();
    furnish(*scratch_ / "first", "");
    const auto first = run_in(*scratch_ / "first", "trireme train configs/gpt-small.toml");
    ASSERT_EQ(first.code, 0) << first.err;
    const auto hf = run_in(*scratch_ / "first", "trireme ckpt export runs/gpt-small runs/hf");
    ASSERT_EQ(hf.code, 0) << hf.err;
    fs::copy(*scratch_ / "first/runs/gpt-small", *scratch_ / "first/runs/other",
             fs::copy_options::recursive);
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  void run(const Pages& pages) {
    std::vector<Pages::const_iterator> waiting;
    for (auto page = pages.begin(); page != pages.end(); ++page) waiting.push_back(page);
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> workers;
    for (int i = 0; i < 3; ++i)  // most of a command's time is waiting
      workers.emplace_back([&] {
        for (std::size_t mine; (mine = next++) < waiting.size();)
          run_page(waiting[mine]->first, waiting[mine]->second);
      });
  }

  std::map<std::string, int> left_out_;  // by why

 private:
  void run_page(const std::string& page, const std::vector<std::string>& commands) {
    const std::string folder =
        *scratch_ / std::regex_replace(page, std::regex("[^A-Za-z0-9]+"), "-");
    bool furnished = false;
    int number = 0;
    for (const std::string& command : commands) {
      if (leave_out(command)) continue;
      if (!furnished) furnish(folder, *scratch_ / "first/runs");
      furnished = true;
      const auto result = run_in(folder, filled(command, ++number));
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(result.code, expected_code(command)) << page << " prints: " << command << "\n"
                                                     << result.out << result.err;
    }
  }

  bool leave_out(const std::string& command) {
    for (const auto& [part, why] : kNotRun) {
      if (command.find(part) == command.npos) continue;
      const std::lock_guard lock(mutex_);
      ++left_out_[part];
      return true;
    }
    return false;
  }

  static std::unique_ptr<Scratch> scratch_;
  std::mutex mutex_;
};
std::unique_ptr<Scratch> DocumentedCommands::scratch_;

TEST_F(DocumentedCommands, OfTheDocumentsAndHelpTextsRun) {
  Pages pages = pages_of_documents();
  std::size_t count = 0;
  for (const auto& [page, commands] : pages) count += commands.size();
  EXPECT_GE(count, 30u) << "the documents' commands were not found";
  const Pages help = pages_of_help();
  EXPECT_GE(help.size(), 9u);
  for (const auto& [page, commands] : help) {
    EXPECT_TRUE(!commands.empty() || page == "trireme doctor --help") << page;
    pages.emplace(page, commands);
  }
  run(pages);
  for (const auto& [part, why] : kNotRun)
    EXPECT_EQ(left_out_.count(part), 1u) << "nobody prints '" << part << "' any more";
}

}  // namespace
}  // namespace trireme::test
