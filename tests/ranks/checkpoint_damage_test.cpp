// Checkpoints that rotted, were half copied, or are somebody else's: named in one sentence, never
// loaded, and where it is damage the one before is used.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "support/faulty_disk.h"
#include "support/saved_states.h"
#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Degrees kFour{.shard = 2, .tensor = 2};

bool is_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

/// Steps 1 and 2, saved by four ranks.
struct DamagedCheckpoint : testing::Test {
  const Scratch scratch;
  const std::string folder = scratch / "run", step = folder + "/step-00000002";
  std::string warnings;

  DamagedCheckpoint() {
    for (const int64_t each : {1, 2}) EXPECT_EQ(save_state(folder, kFour, each, 5), std::nullopt);
  }

  /// The step that is loaded on a mesh.
  int64_t load(const Degrees& degrees = kFour) {
    testing::internal::CaptureStderr();
    const int64_t loaded = load_state(folder, degrees);
    warnings = testing::internal::GetCapturedStderr();
    return loaded;
  }

  /// What every rank says when nothing can be loaded.
  template <class E>
  std::string refusal(const checkpoint::FitCheck& fits = {}) {
    std::vector<std::string> said(4);
    testing::internal::CaptureStderr();
    run_world(kThreads, 4, [&](const comm::Communicator& world) {
      const Mesh mesh(world, kFour);
      said[static_cast<std::size_t>(world.rank())] =
          sentence_of<E>([&] { checkpoint::load_newest(folder, state_of(mesh, 0), world, fits); });
    });
    warnings = testing::internal::GetCapturedStderr();
    for (const std::string& each : said) EXPECT_EQ(each, said[0]);
    return said[0];
  }

  /// The part that has this tensor's first piece.
  std::string part_with(const std::string& tensor) const {
    return step + "/" + format::read_index(step).tensors.at(tensor).pieces[0].file;
  }

  void expect_passed_over(const std::string& file, const std::string& tensor) {
    EXPECT_EQ(load(), 1);
    EXPECT_THAT(warnings, AllOf(HasSubstr(step + " is damaged and passed over"), HasSubstr(file),
                                HasSubstr(tensor)));
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    EXPECT_TRUE(is_there(step + ".damaged"));
    EXPECT_THAT(format::list(folder), ElementsAre(1));
  }
};

TEST_F(DamagedCheckpoint, IsNoneAsLongAsNothingHappens) {
  EXPECT_EQ(load(), 2);
  EXPECT_EQ(load({.tensor = 3}), 2);
  EXPECT_EQ(load({}), 2);
  EXPECT_EQ(warnings, "");
}

/// Every part, with what is whole, in columns and flat, as Python's safetensors and torch see them.
TEST_F(DamagedCheckpoint, IsNoneForPythonEither) {
  EXPECT_EQ(save_state(scratch / "one", {}, 2), std::nullopt);
  const std::string venv = TRIREME_SOURCE_DIR "/.venv/bin/python3";
  const std::string command = fmt::format(
      "{} " TRIREME_SOURCE_DIR "/tests/e2e/read_checkpoint.py {} {} > {}",
      is_there(venv) ? venv : "python3", step, scratch / "one/step-00000002", scratch / "said");
  EXPECT_EQ(std::system(command.c_str()), 0) << "(scripts/setup installs Python's safetensors)";
  EXPECT_EQ(bytes_of(scratch / "said"), "3 tensors in 2 checkpoints, equal\n");
}

TEST_F(DamagedCheckpoint, ByATornLastBlock) {
  std::string bytes = bytes_of(part_with("a"));
  for (std::size_t i = bytes.size() - 3000; i < bytes.size(); ++i) bytes[i] = '\0';
  put_bytes(part_with("a"), bytes);
  expect_passed_over(part_with("a"), "a");
}

TEST_F(DamagedCheckpoint, ByAFlippedBitOfAHeader) {
  const std::string part = part_with("b");
  std::string bytes = bytes_of(part);
  bytes[20] = static_cast<char>(bytes[20] ^ 4);
  put_bytes(part, bytes);
  expect_passed_over(part, "its header, to find tensor '");
}

TEST_F(DamagedCheckpoint, ByAFlippedBitOfTheDataOnOneRankOnly) {
  // 'c' is cut over tensor: only the ranks of the second half read this.
  const auto pieces = format::read_index(step).tensors.at("c").pieces;
  const std::string part = step + "/" + pieces.back().file;
  std::string bytes = bytes_of(part);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_bytes(part, bytes);
  expect_passed_over(part, "");
}

TEST_F(DamagedCheckpoint, ByAFlippedBitOfTheIndex) {
  std::string text = bytes_of(step + "/index.json");
  const auto at = text.find("\"begin\": ") + 9;
  text[at] = static_cast<char>(text[at] ^ 1);
  put_bytes(step + "/index.json", text);
  expect_passed_over("index.json", "");
}

TEST_F(DamagedCheckpoint, ByAMissingPart) {
  const std::string part = part_with("b");
  ::unlink(part.c_str());
  expect_passed_over(part, "it holds");
}

TEST_F(DamagedCheckpoint, ByACutPart) {
  const std::string part = part_with("a"), bytes = bytes_of(part);
  put_bytes(part, bytes.substr(0, bytes.size() / 2));
  expect_passed_over(part, "cut off; it holds");
}

TEST_F(DamagedCheckpoint, ByAPartOfAnotherStep) {
  const std::string part = part_with("a");
  const std::string other = folder + "/step-00000001" + part.substr(step.size());
  ASSERT_EQ(bytes_of(other).size(), bytes_of(part).size()) << "only the checksums can tell";
  put_bytes(part, bytes_of(other));
  expect_passed_over(part, "tensor 'a'");
}

/// No descriptors left, an error of the disk: what is in the files may be whole.
TEST_F(DamagedCheckpoint, IsNoneIfItCannotBeReadJustNow) {
  const auto pass = [&](int at) {
    faulty_disk_arm("eio", at, step.c_str(), nullptr);
    const std::string said = refusal<format::UnreadableError>();
    faulty_disk_disarm();
    EXPECT_THAT(said, AllOf(HasSubstr("Input/output error"), HasSubstr("nothing was put aside")));
  };
  for (int at = 1; at <= 4; ++at) pass(at);  // the index, the parts
  EXPECT_THAT(format::list(folder), ElementsAre(1, 2));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string said =
      sentence_of<format::UnreadableError>([&] { format::Checkpoint one(step); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(said, HasSubstr("Too many open files"));
  EXPECT_EQ(load(), 2);
}

TEST_F(DamagedCheckpoint, IsPutAsideUnderANewNameEachTime) {
  for (const char* aside : {".damaged", ".damaged-2"}) {
    EXPECT_EQ(save_state(folder, kFour, 2, 5), std::nullopt);
    ::unlink(part_with("a").c_str());
    EXPECT_EQ(load(), 1);
    EXPECT_TRUE(is_there(step + aside));
  }
}

TEST_F(DamagedCheckpoint, AndNoOtherIsAnErrorAndStaysWhereItIs) {
  for (const int64_t each : {1, 2})
    ::unlink((folder + "/" + format::step_name(each) + "/part-00000.safetensors").c_str());
  EXPECT_THAT(refusal<CheckpointError>(),
              AllOf(HasSubstr("none of the 2 checkpoints in " + folder + " is whole"),
                    HasSubstr("part-00000.safetensors"), HasSubstr("remove them to start over")));
  EXPECT_THAT(format::list(folder), ElementsAre(1, 2));
}

TEST_F(DamagedCheckpoint, IsNotOneThatWasNeverFinished) {
  ::mkdir((folder + "/step-00000003").c_str(), 0755);
  put_bytes(folder + "/step-00000003/part-00000.safetensors", "x");
  EXPECT_EQ(load(), 2);
  EXPECT_THAT(warnings, HasSubstr(folder + "/step-00000003 is passed over: it has no index.json"));
  EXPECT_THAT(sentence_of<ConfigError>([&] { checkpoint::open(folder + "/step-00000003"); }),
              HasSubstr("step-00000003' is not a finished checkpoint: it has no index.json"));
  EXPECT_EQ(sentence_of<ConfigError>([] { checkpoint::open("/nowhere/step-00000003"); }),
            "there is no checkpoint '/nowhere/step-00000003'");
}

TEST_F(DamagedCheckpoint, IsNotOneOfANewerTrireme) {
  core::Json json = core::Json::parse(bytes_of(step + "/index.json"));
  json["version"] = 2;
  put_bytes(step + "/index.json", json.dump());
  EXPECT_THAT(refusal<ConfigError>(),
              AllOf(HasSubstr(step + "/index.json has version 2"), HasSubstr("newer Trireme")));
  EXPECT_THAT(format::list(folder), ElementsAre(1, 2)) << "it is nobody's to put aside";
  EXPECT_EQ(warnings, "");
}

TEST_F(DamagedCheckpoint, IsNotOneOfAnotherModel) {
  std::vector<std::string> said;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, std::vector<int64_t>>>{{"a", {700, 500}}, {"z", {3}}}) {
    run_world(kThreads, 1, [&, name = name, shape = shape](const comm::Communicator& world) {
      checkpoint::State state;
      state.items.push_back(checkpoint::whole(name, torch::zeros(shape)));
      said.push_back(
          sentence_of<ConfigError>([&] { checkpoint::load_newest(folder, state, world); }));
    });
  }
  EXPECT_THAT(said, ElementsAre(HasSubstr("'a' as [500, 700], but [700, 500] is wanted"),
                                HasSubstr("has no tensor 'z'")));
  EXPECT_THAT(refusal<ConfigError>([](const format::Checkpoint& saved) {
                throw ConfigError(saved.folder() + " was made by another run");
              }),
              HasSubstr("was made by another run"));
  EXPECT_THAT(format::list(folder), ElementsAre(1, 2));
}

}  // namespace
}  // namespace trireme::test
