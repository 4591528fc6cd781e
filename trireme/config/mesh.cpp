#include "trireme/config/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "trireme/core/error.h"

namespace trireme::config {

namespace {

constexpr int64_t kMostRanks = 99'999;  // file names of checkpoint parts have five digits

/// The product of the degrees that are not 0, and its text.
struct Product {
  int64_t ranks = 1;
  int axes = 0;      ///< axes of more than one rank
  std::string text;  ///< these axes: "replica 2 x tensor 3"
};

Product product_of(const MeshKeys& mesh) {
  const std::pair<const char*, int64_t> degrees[] = {{"pipe", mesh.pipe},
                                                     {"replica", mesh.replica},
                                                     {"shard", mesh.shard},
                                                     {"context", mesh.context},
                                                     {"tensor", mesh.tensor}};
  Product product;
  for (const auto& [name, degree] : degrees) {
    if (degree < 0) throw ConfigError(fmt::format("mesh.{} = {} is less than 0", name, degree));
    if (degree < 2) continue;
    product.text += fmt::format("{}{} {}", product.axes == 0 ? "" : " x ", name, degree);
    ++product.axes;
    if (degree > kMostRanks || (product.ranks *= degree) > kMostRanks)
      throw ConfigError(fmt::format("mesh: {} is more than {} ranks", product.text, kMostRanks));
  }
  return product;
}

std::string ranks_text(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

/// For a mesh without a 0, whose product is not the size of the world.
[[noreturn]] void refuse_world(const MeshKeys& mesh, const Product& product, int world_size) {
  std::string sentence = fmt::format(
      "the mesh needs {}{}, but the launcher started {}: use -n {}", ranks_text(product.ranks),
      product.axes > 1 ? fmt::format(" ({})", product.text) : "", world_size, product.ranks);
  const int64_t others = product.ranks / std::max<int64_t>(1, mesh.replica);
  if (world_size % others == 0) sentence += fmt::format(" or mesh.replica={}", world_size / others);
  throw ConfigError(sentence);
}

}  // namespace

int wanted_ranks(const MeshKeys& mesh) {
  return static_cast<int>(product_of(mesh).ranks);
}

Degrees resolve_mesh(const MeshKeys& mesh, int world_size) {
  core::check(world_size >= 1, "resolve_mesh: a world of {} ranks", world_size);
  const Product product = product_of(mesh);
  const bool has_rest = mesh.replica == 0 || mesh.shard == 0;
  if (!has_rest && product.ranks != world_size) refuse_world(mesh, product, world_size);
  if (world_size % product.ranks != 0)
    throw ConfigError(fmt::format(
        "the mesh ({}) needs a multiple of {} ranks, but the launcher started {}: use -n {}",
        product.text, product.ranks, world_size, (world_size / product.ranks + 1) * product.ranks));
  if (mesh.replica == 0 && mesh.shard == 0)
    throw ConfigError(
        "mesh: replica and shard cannot both be 0, which means what is left of the world");

  const auto degree = [&](int64_t asked) {
    return static_cast<int>(asked == 0 ? world_size / product.ranks : asked);
  };
  const Degrees degrees = {.pipe = static_cast<int>(mesh.pipe),
                           .replica = degree(mesh.replica),
                           .shard = degree(mesh.shard),
                           .context = static_cast<int>(mesh.context),
                           .tensor = static_cast<int>(mesh.tensor),
                           .expert = static_cast<int>(mesh.expert)};
  try {
    check(degrees, world_size);
  } catch (const MisuseError& error) {
    throw ConfigError(error.what());  // here the configuration is wrong, not the caller
  }
  return degrees;
}

Degrees degrees_of(const Config& config, int world_size) {
  const Degrees degrees = resolve_mesh(config.mesh, world_size);
  const Sync& sync = config.sync;
  if (!sync.is_local()) return degrees;
  if (degrees.replica % sync.inner_group != 0)
    throw ConfigError(fmt::format(
        "sync.inner_group = {} does not divide the {} replicas: use a divisor of mesh.replica",
        sync.inner_group, degrees.replica));
  const int64_t replicas = degrees.replica / sync.inner_group;
  const int64_t inside = sync.inner_group * degrees.shard * degrees.context;
  if (inside % degrees.expert != 0)
    throw ConfigError(
        fmt::format("sync.kind = \"{}\": a replica has {} ranks that see other tokens, to which "
                    "mesh.expert = {} "
                    "cannot deal experts: use a divisor of {}",
                    to_string(sync.kind), inside, degrees.expert, inside));
  if (sync.seconds > 0 && config.batch.global % replicas != 0)
    throw ConfigError(
        fmt::format("sync.seconds: {} replicas claim equal batches, but batch.global = {} is no "
                    "multiple of {}",
                    replicas, config.batch.global, replicas));
  return degrees;
}

}  // namespace trireme::config
