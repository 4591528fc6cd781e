// The folders are the architecture: this reads the trireme_layer() calls and the #include lines and
// finds whatever breaks the rules of the tree.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Complaints = std::vector<std::string>;

constexpr int kMostLines = 600;

struct LayerRule {
  std::set<std::string> uses;  ///< with all that those use
  bool torch = false;
};
using Rules = std::map<std::string, LayerRule>;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool is_code(const fs::path& path) {
  return path.extension() == ".h" || path.extension() == ".cpp";
}

/// The files below root/folder, relative to root, in order; none where there is no such folder.
std::vector<fs::path> files_below(const fs::path& root, const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_directory(root / folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder))
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), root));
  std::ranges::sort(files);
  return files;
}

/// One call, such as: trireme_layer(mesh USES comm layout TORCH LINKS fmt::fmt)
void read_call(const std::string& arguments, Rules& rules) {
  static const std::set<std::string> keywords{"TORCH", "PCH", "COLD", "USES", "LINKS"};
  std::istringstream words(arguments);
  std::string name, word, keyword;
  words >> name;
  LayerRule rule;
  while (words >> word) {
    if (word == "TORCH") rule.torch = true;
    if (keywords.contains(word)) {
      keyword = word;
    } else if (keyword == "USES") {
      rule.uses.insert(word);
      if (rules.contains(word)) rule.uses.insert(rules[word].uses.begin(), rules[word].uses.end());
    }
  }
  rules[name] = rule;
}

/// CMake refuses a layer that uses one declared after it, so one pass closes the USES.
Rules read_rules(const fs::path& root) {
  std::string text;
  for (const std::string& line : lines_of(read_text(root / "trireme/CMakeLists.txt")))
    text += line.substr(0, line.find('#')) + "\n";
  Rules rules;
  const std::regex call(R"(trireme_layer\s*\(([^)]*)\))");
  for (std::sregex_iterator match(text.begin(), text.end(), call), end; match != end; ++match)
    read_call((*match)[1], rules);
  return rules;
}

/// Folder of trireme/ that the path lies in; empty for trireme/trireme.h and the like.
std::string layer_of(const fs::path& path) {
  const auto parts = std::vector<fs::path>(path.begin(), path.end());
  return parts.size() > 2 ? parts[1].string() : "";
}

void check_include(const fs::path& file, const std::string& included, const std::string& layer,
                   const LayerRule& rule, Complaints& found) {
  static const std::regex torch("^(torch|ATen|c10)/.*");
  if (std::regex_match(included, torch) && !rule.torch)
    found.push_back(file.string() + ": includes " + included + ", but " + layer + " has no TORCH");
  const fs::path path(included);
  if (*path.begin() != "trireme") return;
  const std::string other = layer_of(path);
  if (other != layer && !rule.uses.contains(other))
    found.push_back(file.string() + ": includes " + included + ", but " + layer + " does not use " +
                    (other.empty() ? "it" : other));
}

void check_layers(const fs::path& root, Complaints& found) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">].*)re");
  const Rules rules = read_rules(root);
  std::set<std::string> layers;
  for (const fs::path& file : files_below(root, "trireme")) {
    const std::string layer = layer_of(file);
    if (layer.empty()) continue;
    layers.insert(layer);
    if (!rules.contains(layer) || !is_code(file)) continue;
    for (const std::string& line : lines_of(read_text(root / file))) {
      std::smatch match;
      if (std::regex_match(line, match, include))
        check_include(file, match[1], layer, rules.at(layer), found);
    }
  }
  for (const std::string& layer : layers) {
    const fs::path folder = fs::path("trireme") / layer;
    if (!rules.contains(layer)) found.push_back(folder.string() + ": has no trireme_layer() call");
    if (!fs::exists(root / folder / "README.md"))
      found.push_back(folder.string() + ": has no README.md");
  }
}

void check_lengths(const fs::path& root, Complaints& found) {
  for (const char* folder : {"trireme", "models", "cli", "examples", "tests", "bench"}) {
    for (const fs::path& file : files_below(root, folder)) {
      if (!is_code(file)) continue;
      const auto lines = lines_of(read_text(root / file)).size();
      if (lines > kMostLines)
        found.push_back(file.string() + ": has " + std::to_string(lines) + " lines; at most " +
                        std::to_string(kMostLines));
    }
  }
}

/// What git tracks or would track below root. Where root is no repository: every file but those of
/// build folders and hidden ones.
std::vector<fs::path> tracked_files(const fs::path& root) {
  if (!fs::exists(root / ".git")) {
    auto files = files_below(root, "");
    std::erase_if(files, [](const fs::path& file) {
      const std::string top = file.begin()->string();
      return top.starts_with(".") || top.starts_with("build");
    });
    return files;
  }
  std::vector<fs::path> files;
  FILE* pipe = ::popen(
      ("git -C '" + root.string() + "' ls-files --cached --others --exclude-standard").c_str(),
      "r");
  char line[4096];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr)
    files.emplace_back(std::string(line).substr(0, std::string(line).find('\n')));
  if (pipe != nullptr) ::pclose(pipe);
  return files;
}

/// Whether the path that `at` lies inside begins at the root of the file system. (A folder of the
/// tree may well have the same name: trireme/comm/... is none of our business.)
bool in_absolute_path(const std::string& text, std::size_t at) {
  const auto is_path = [](char c) {
    return std::isalnum(c) || std::string_view("/._-").find(c) != std::string_view::npos;
  };
  while (at > 0 && is_path(text[at - 1])) --at;
  return text[at] == '/';
}

/// A clone has nothing but itself: no file may point to the folder that lies beside this checkout.
void check_stands_alone(const fs::path& root, Complaints& found) {
  const std::string relative = std::string("../") + "shared",
                    absolute = std::string("/") + "shared/";
  const auto files = tracked_files(root);
  if (files.empty()) found.push_back(root.string() + ": git lists no files");
  for (const fs::path& file : files) {
    const std::string text = read_text(root / file);
    if (text.find('\0') != text.npos) continue;
    bool points = text.find(relative) != text.npos;
    for (auto at = text.find(absolute); at != text.npos; at = text.find(absolute, at + 1))
      points = points || in_absolute_path(text, at);
    if (points) found.push_back(file.string() + ": points to a folder outside the tree, 'shared'");
  }
}

Complaints check_architecture(const fs::path& root) {
  Complaints found;
  check_layers(root, found);
  check_lengths(root, found);
  check_stands_alone(root, found);
  return found;
}

/// A small tree in a folder of its own that is gone afterwards.
class Architecture : public testing::Test {
 protected:
  Architecture() : root_(fs::temp_directory_path() / "trireme_architecture_XXXXXX") {
    std::string pattern = root_.string();
    root_ = ::mkdtemp(pattern.data());
    plant("trireme/CMakeLists.txt",
          "trireme_layer(core LINKS fmt::fmt)\n"
          "trireme_layer(net USES core)\n"
          "# trireme_layer(ghost)\n"
          "trireme_layer(comm\n  USES net  # and so core\n  TORCH)\n");
    for (const char* layer : {"core", "net", "comm"})
      plant(std::string("trireme/") + layer + "/README.md", "fine\n");
    plant("trireme/comm/op.h",
          "#include <torch/torch.h>\n#include \"trireme/core/error.h\"\n"
          "#include \"trireme/comm/work.h\"\n");
    plant("trireme/trireme.h", "#include \"trireme/comm/op.h\"\n");
  }
  ~Architecture() override { fs::remove_all(root_); }

  void plant(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  Complaints complaints() const { return check_architecture(root_); }

 private:
  fs::path root_;
};

TEST_F(Architecture, FindsNothingInATreeThatKeepsTheRules) {
  EXPECT_EQ(complaints(), Complaints{});
}

TEST_F(Architecture, FindsAnIncludeOfALayerThatIsNotUsed) {
  plant("trireme/net/sub/socket.cpp", "  #  include \"trireme/comm/op.h\"  // up\n");
  EXPECT_EQ(complaints(), Complaints{"trireme/net/sub/socket.cpp: includes trireme/comm/op.h, but "
                                     "net does not use comm"});
}

TEST_F(Architecture, FindsTheUmbrellaHeaderInsideALayer) {
  plant("trireme/net/socket.h", "#include <trireme/trireme.h>\n");
  EXPECT_EQ(complaints(), Complaints{"trireme/net/socket.h: includes trireme/trireme.h, but net "
                                     "does not use it"});
}

TEST_F(Architecture, FindsTorchWhereThereIsNone) {
  plant("trireme/core/a.h", "#include <ATen/ATen.h>\n");
  plant("trireme/core/b.h", "#include <c10/util/Half.h>\n");
  plant("trireme/net/c.h", "#include \"torch/torch.h\"\n");
  EXPECT_EQ(complaints(),
            (Complaints{"trireme/core/a.h: includes ATen/ATen.h, but core has no TORCH",
                        "trireme/core/b.h: includes c10/util/Half.h, but core has no TORCH",
                        "trireme/net/c.h: includes torch/torch.h, but net has no TORCH"}));
}

TEST_F(Architecture, FindsAFolderThatIsNoLayerOrHasNoReadme) {
  plant("trireme/ghost/a.h", "");
  EXPECT_EQ(complaints(), (Complaints{"trireme/ghost: has no trireme_layer() call",
                                      "trireme/ghost: has no README.md"}));
}

TEST_F(Architecture, FindsLongFilesEverywhere) {
  std::string text;
  for (int line = 0; line < kMostLines; ++line) text += "\n";
  plant("trireme/core/long.h", text);
  plant("bench/long.cpp", text + "\n");
  plant("docs/long.md", text + text);
  EXPECT_EQ(complaints(), Complaints{"bench/long.cpp: has 601 lines; at most 600"});
}

TEST_F(Architecture, FindsMentionsOfTheFolderBesideTheCheckout) {
  const std::string name = "shared";
  plant("docs/a.md", "see ../" + name + "\n");
  plant("docs/b.md", "see `/work/" + name + "/design.md`\n");
  plant("docs/c.md", "#include \"trireme/comm/" + name + "/ring.h\"\n");
  EXPECT_EQ(complaints(), (Complaints{"docs/a.md: points to a folder outside the tree, 'shared'",
                                      "docs/b.md: points to a folder outside the tree, 'shared'"}));
}

TEST(Tree, KeepsTheRules) {
  std::string all;
  for (const std::string& each : check_architecture(TRIREME_SOURCE_DIR)) all += each + "\n";
  EXPECT_EQ(all, "");
}

TEST(Tree, HasTheLayersThatItIsReadFor) {
  const Rules rules = read_rules(TRIREME_SOURCE_DIR);
  ASSERT_TRUE(rules.contains("mesh"));
  EXPECT_TRUE(rules.at("mesh").torch);
  EXPECT_TRUE(rules.at("mesh").uses.contains("core"));
  EXPECT_FALSE(rules.at("core").torch);
}

/// Every match of the form's first group in a file of the tree, with `prefix` before it.
std::set<std::string> names_in(const std::string& file, const std::regex& form,
                               const std::string& prefix = "") {
  const std::string text = read_text(fs::path(TRIREME_SOURCE_DIR) / file);
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), form), end; match != end; ++match)
    names.insert(prefix + (*match)[1].str());
  return names;
}

std::set<std::string> public_headers() {
  return names_in("cmake/trireme_public_headers.cmake", std::regex("\n  (trireme/[^ )\n]+\\.h)"));
}

TEST(PublicHeaders, AreWhatTheUmbrellaHeaderIncludes) {
  auto included = names_in("trireme/trireme.h", std::regex("#include \"([^\"]+)\""));
  included.insert("trireme/trireme.h");
  EXPECT_EQ(included, public_headers());
}

TEST(PublicHeaders, AreAllInTheDocumentOfTheApiAndNoOthers) {
  EXPECT_EQ(names_in("docs/api.md", std::regex("`([a-z0-9_/]+\\.h)`"), "trireme/"),
            public_headers());
}

}  // namespace
}  // namespace trireme
