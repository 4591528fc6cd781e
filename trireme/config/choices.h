#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trireme::config {

// The keys that take one word of a fixed set, and the two that take a word or something else.
// Strings become these types once, when a configuration is read.

/// Later: the key or word can be read and written, but this version does not implement it yet.
enum class Built : uint8_t { Now, Later };

/// A word of a configuration file and the choice that it stands for.
template <class Choice>
struct Word {
  std::string_view text;
  Choice choice;
  Built built = Built::Now;
};

/// The words of each enum, in the order in which messages list them.
template <class Choice>
struct Words;

enum class Device : uint8_t { Auto, Cpu, Cuda };
template <>
struct Words<Device> {
  static constexpr Word<Device> all[] = {
      {"auto", Device::Auto}, {"cpu", Device::Cpu}, {"cuda", Device::Cuda}};
};

/// run.deterministic: the same bits every time. A file writes the last two as true and false.
enum class Deterministic : uint8_t { Auto, Yes, No };
template <>
struct Words<Deterministic> {
  static constexpr Word<Deterministic> all[] = {
      {"auto", Deterministic::Auto}, {"true", Deterministic::Yes}, {"false", Deterministic::No}};
};

/// run.graph: whether the steps of a GPU are recorded once and replayed.
enum class Graph : uint8_t { Auto, Off };
template <>
struct Words<Graph> {
  static constexpr Word<Graph> all[] = {{"auto", Graph::Auto}, {"off", Graph::Off}};
};

enum class DataKind : uint8_t { Markov, Tokens, Text, JsonLines, Idx, Cifar, Images };
template <>
struct Words<DataKind> {
  static constexpr Word<DataKind> all[] = {
      {"markov", DataKind::Markov},   {"tokens", DataKind::Tokens}, {"text", DataKind::Text},
      {"jsonl", DataKind::JsonLines}, {"idx", DataKind::Idx},       {"cifar", DataKind::Cifar},
      {"images", DataKind::Images}};
};
/// Are its samples images with labels, and not texts?
constexpr bool has_images(DataKind kind) {
  return kind == DataKind::Idx || kind == DataKind::Cifar || kind == DataKind::Images;
}

/// data.augment: what is done to training images; the usual of their kind.
enum class Augment : uint8_t { None, Standard };
template <>
struct Words<Augment> {
  static constexpr Word<Augment> all[] = {{"none", Augment::None}, {"standard", Augment::Standard}};
};

/// Which elements of a head rotate together: x[i] with x[i + D / 2], or x[2 i] with x[2 i + 1].
enum class RopePairs : uint8_t { Halves, Neighbours };
template <>
struct Words<RopePairs> {
  static constexpr Word<RopePairs> all[] = {{"halves", RopePairs::Halves},
                                            {"neighbours", RopePairs::Neighbours}};
};

/// How rotary positions reach beyond the length that a model was trained on.
enum class RopeScaling : uint8_t { None, Linear, Dynamic, Yarn, Llama3 };
template <>
struct Words<RopeScaling> {
  static constexpr Word<RopeScaling> all[] = {{"none", RopeScaling::None},
                                              {"linear", RopeScaling::Linear},
                                              {"dynamic", RopeScaling::Dynamic},
                                              {"yarn", RopeScaling::Yarn},
                                              {"llama3", RopeScaling::Llama3}};
};

/// The first layers of a ResNet: 3x3 for small images, or 7x7 with stride 2 and pooling.
enum class Stem : uint8_t { Cifar, ImageNet };
template <>
struct Words<Stem> {
  static constexpr Word<Stem> all[] = {{"cifar", Stem::Cifar}, {"imagenet", Stem::ImageNet}};
};

/// How images lie in memory.
enum class Pixels : uint8_t { ChannelsFirst, ChannelsLast };
template <>
struct Words<Pixels> {
  static constexpr Word<Pixels> all[] = {{"channels-first", Pixels::ChannelsFirst},
                                         {"channels-last", Pixels::ChannelsLast}};
};

/// Over which samples batch norm takes its statistics: all ranks' of a micro-batch, or one rank's.
enum class BatchNormKind : uint8_t { Sync, Local };
template <>
struct Words<BatchNormKind> {
  static constexpr Word<BatchNormKind> all[] = {{"sync", BatchNormKind::Sync},
                                                {"local", BatchNormKind::Local}};
};

/// model.router: how a token chooses its experts. ExpertChoice can be read, so that it can be
/// refused with the reason.
enum class RouterKind : uint8_t { Softmax, Normalised, SigmoidBias, Grouped, ExpertChoice };
template <>
struct Words<RouterKind> {
  static constexpr Word<RouterKind> all[] = {{"softmax", RouterKind::Softmax},
                                             {"normalised", RouterKind::Normalised},
                                             {"sigmoid-bias", RouterKind::SigmoidBias},
                                             {"grouped", RouterKind::Grouped},
                                             {"expert-choice", RouterKind::ExpertChoice}};
};

enum class OptimizerKind : uint8_t { AdamW, Sgd };
template <>
struct Words<OptimizerKind> {
  static constexpr Word<OptimizerKind> all[] = {{"adamw", OptimizerKind::AdamW},
                                                {"sgd", OptimizerKind::Sgd}};
};

enum class RateSchedule : uint8_t { Cosine, Linear, Constant };
template <>
struct Words<RateSchedule> {
  static constexpr Word<RateSchedule> all[] = {{"cosine", RateSchedule::Cosine},
                                               {"linear", RateSchedule::Linear},
                                               {"constant", RateSchedule::Constant}};
};

enum class ContextKind : uint8_t { Ring, Ulysses, Gather };
template <>
struct Words<ContextKind> {
  static constexpr Word<ContextKind> all[] = {{"ring", ContextKind::Ring},
                                              {"ulysses", ContextKind::Ulysses},
                                              {"gather", ContextKind::Gather}};
};

enum class Dtype : uint8_t { Float32, Float64, BFloat16, Float16 };
template <>
struct Words<Dtype> {
  static constexpr Word<Dtype> all[] = {{"float32", Dtype::Float32},
                                        {"float64", Dtype::Float64},
                                        {"bfloat16", Dtype::BFloat16},
                                        {"float16", Dtype::Float16}};
};

/// What the optimizer updates where weights have 16 bits: a float32 master of each, or the weight.
enum class Master : uint8_t { Float32, None };
template <>
struct Words<Master> {
  static constexpr Word<Master> all[] = {{"float32", Master::Float32}, {"none", Master::None}};
};

enum class Recompute : uint8_t { None, Block, Selective, Cheap, Sqrt, ExceptLast };
template <>
struct Words<Recompute> {
  static constexpr Word<Recompute> all[] = {
      {"none", Recompute::None},           {"block", Recompute::Block},
      {"selective", Recompute::Selective}, {"cheap", Recompute::Cheap},
      {"sqrt", Recompute::Sqrt},           {"except_last", Recompute::ExceptLast}};
};

enum class ShardedState : uint8_t { Optimizer, Gradients, Parameters };
template <>
struct Words<ShardedState> {
  static constexpr Word<ShardedState> all[] = {{"optimizer", ShardedState::Optimizer},
                                               {"gradients", ShardedState::Gradients},
                                               {"parameters", ShardedState::Parameters}};
};

enum class Offload : uint8_t { None, Optimizer };
template <>
struct Words<Offload> {
  static constexpr Word<Offload> all[] = {{"none", Offload::None},
                                          {"optimizer", Offload::Optimizer}};
};

enum class SyncKind : uint8_t { Lockstep, Average, PostLocal, Bmuf, SlowMo, DiLoCo, Stale, Free };
template <>
struct Words<SyncKind> {
  static constexpr Word<SyncKind> all[] = {
      {"lockstep", SyncKind::Lockstep},    {"average", SyncKind::Average},
      {"post-local", SyncKind::PostLocal}, {"bmuf", SyncKind::Bmuf},
      {"slowmo", SyncKind::SlowMo},        {"diloco", SyncKind::DiLoCo},
      {"stale", SyncKind::Stale},          {"free", SyncKind::Free}};
};

/// sync.optimizer: what servers update weights with; Same: what optim says.
enum class ServerOptimizer : uint8_t { Same, Sgd, AdamW, Adagrad };
template <>
struct Words<ServerOptimizer> {
  static constexpr Word<ServerOptimizer> all[] = {{"", ServerOptimizer::Same},
                                                  {"sgd", ServerOptimizer::Sgd},
                                                  {"adamw", ServerOptimizer::AdamW},
                                                  {"adagrad", ServerOptimizer::Adagrad}};
};

enum class Compression : uint8_t { None, Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd, Auto };
template <>
struct Words<Compression> {
  static constexpr Word<Compression> all[] = {
      {"none", Compression::None},       {"fp16", Compression::Fp16},
      {"bf16", Compression::Bf16},       {"int8", Compression::Int8},
      {"onebit", Compression::OneBit},   {"topk", Compression::TopK},
      {"randomk", Compression::RandomK}, {"powersgd", Compression::PowerSgd},
      {"auto", Compression::Auto}};
};

/// How activations between stages, and weights that are gathered, travel.
enum class Narrow : uint8_t { None, Fp16, Bf16, Int8 };
template <>
struct Words<Narrow> {
  static constexpr Word<Narrow> all[] = {{"none", Narrow::None},
                                         {"fp16", Narrow::Fp16},
                                         {"bf16", Narrow::Bf16},
                                         {"int8", Narrow::Int8}};
};

enum class Backend : uint8_t { Auto, Shm, Tcp, Local, Mpi, Nccl };
template <>
struct Words<Backend> {
  static constexpr Word<Backend> all[] = {{"auto", Backend::Auto},
                                          {"shm", Backend::Shm},
                                          {"tcp", Backend::Tcp},
                                          {"local", Backend::Local},
                                          {"mpi", Backend::Mpi, Built::Later},
                                          {"nccl", Backend::Nccl}};
};

/// The word that stands for the choice: "auto".
template <class Choice>
requires std::is_enum_v<Choice>
constexpr std::string_view to_string(Choice choice) {
  for (const auto& word : Words<Choice>::all)
    if (word.choice == choice) return word.text;
  return {};  // not one of the enum's values
}

/// pipeline.balance: "time", "params", or the number of layers of each stage as "3,5,5,3".
struct Balance {
  enum class By : uint8_t { Time, Parameters, Layers };
  By by = By::Time;
  std::vector<int> layers = {};  ///< by Layers: at least one layer for each stage
  bool operator==(const Balance&) const = default;
};
std::string to_string(const Balance& balance);
/// Nothing if the text has none of the three forms.
std::optional<Balance> parse_balance(std::string_view text);

/// checkpoint.resume: "auto" (the newest checkpoint of run.dir), "never", or a checkpoint's folder.
struct Resume {
  enum class From : uint8_t { Newest, Nothing, Folder };
  From from = From::Newest;
  std::string folder = {};  ///< where `from` is Folder
  bool operator==(const Resume&) const = default;
};
std::string to_string(const Resume& resume);
/// Every text other than the two words is a folder.
Resume parse_resume(std::string_view text);

}  // namespace trireme::config
