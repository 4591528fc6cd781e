// `trireme train`, `verify` and `--check` where ranks share sequences, and documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/curves.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TrainOnAContextAxis, GivesTheLossesAndEvaluationsOfOneRank) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto keys = with(kInDouble, {"eval.every=10"});
  must(train_arguments(config, folder / "one", with(keys, {"mesh.replica=1"})));
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=1", "mesh.context=2"},
      {"mesh.replica=1", "mesh.context=2", "context.kind=ulysses", "mesh.shard=2"},
      {"mesh.replica=1", "mesh.context=2", "context.kind=gather", "mesh.tensor=2"},
      {"mesh.replica=1", "mesh.context=2", "comm.backend=tcp", "mesh.pipe=2"}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const std::string dir = folder / ("mesh" + std::to_string(i));
    must(train_arguments(config, dir, with(keys, meshes[i])));
    for (const char* field : {"loss", "grad_norm", "weight"})
      expect_same_curve(numbers_of(dir, field), numbers_of(folder / "one", field));
    const auto line = [&](const std::string& of) { return texts_of(of, "eval_loss").back(); };
    EXPECT_NEAR(std::stod(line(dir)), std::stod(line(folder / "one")), 1e-10);
  }
}

TEST(TrainOnAContextAxis, IsProvedAndChecked) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto proved = must({kTrireme, "verify", config, "mesh.replica=1", "mesh.context=2",
                            "mesh.shard=2", "model.dropout=0.1"});
  EXPECT_THAT(proved.out, HasSubstr("same: 3 steps"));
  const auto told = must({kTrireme, "train", config, "--check", "mesh.replica=1", "mesh.context=2",
                          "context.kind=gather"});
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("context 2"), HasSubstr("on a rank, a piece of the head and one of "
                                                      "the tail; attention by context.kind = "
                                                      "\"gather\"")));
}

TEST(TrainOnAContextAxis, RefusesASequenceThatIsTooShortInOneSentence) {
  const Scratch folder;
  const auto refused = must(train_arguments(tiny_config(folder), folder / "a",
                                            {"mesh.replica=1", "mesh.context=3", "model.seq=5"}),
                            2);
  EXPECT_THAT(refused.err, HasSubstr("mesh.context = 3 cuts a sequence in 6 pieces"));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
}

/// A text of many short documents.
std::string write_documents(const Scratch& folder) {
  std::ofstream(folder / "texts.jsonl") << [] {
    std::string lines;
    for (int i = 0; i < 400; ++i)
      lines += "{\"text\": \"document " + std::to_string(i * i) + " says so.\"}\n";
    return lines;
  }();
  return folder / "texts.jsonl";
}

TEST(TrainOnDocuments, StopsAtTheirBordersOnAnyMesh) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys =
      with(kInDouble, {"data.kind=text", "data.path=" + write_documents(folder), "model.vocab=260",
                       "model.seq=48", "eval.every=0", "mesh.replica=1"});
  const auto documents = with(keys, {"data.documents=true"});
  must(train_arguments(config, folder / "across", keys));
  must(train_arguments(config, folder / "one", documents));
  must(train_arguments(config, folder / "two", with(documents, {"mesh.context=2"})));
  const auto alone = numbers_of(folder / "one", "loss");
  EXPECT_NE(alone, numbers_of(folder / "across", "loss"));
  expect_same_curve(numbers_of(folder / "two", "loss"), alone);
}

TEST(TrainOnDocuments, RefusesAFileThatHasNoEndOfADocument) {
  const Scratch folder;
  const std::string config = tiny_config(folder), file = folder / "tokens.bin";
  must({kTrireme, "data", "make", file, "--vocab", "32", "--tokens", "4000"});
  const auto refused = must(train_arguments(config, folder / "a",
                                            {"data.path=" + file, "data.documents=true",
                                             "data.eod=40", "model.vocab=64", "eval.every=0"}),
                            2);
  EXPECT_THAT(refused.err, HasSubstr("none of its 4000 tokens is 40, which should end documents"));
}

}  // namespace
}  // namespace trireme::test
