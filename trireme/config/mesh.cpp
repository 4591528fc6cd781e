#include "trireme/config/mesh.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "trireme/core/error.h"

namespace trireme::config {

namespace {

/// What the degrees that are not 0 multiply to, and the sum as people check it.
struct Product {
  int64_t ranks = 1;
  std::string text;  ///< "pipe 1 x replica 2 x shard 1 x context 1 x tensor 3"
};

Product product_of(const MeshKeys& mesh) {
  const std::pair<const char*, int64_t> degrees[] = {{"pipe", mesh.pipe},
                                                     {"replica", mesh.replica},
                                                     {"shard", mesh.shard},
                                                     {"context", mesh.context},
                                                     {"tensor", mesh.tensor}};
  Product product;
  for (const auto& [name, degree] : degrees) {
    if (degree == 0) continue;
    if (degree < 0) throw ConfigError(fmt::format("mesh.{} = {} is less than 0", name, degree));
    product.text += fmt::format("{}{} {}", product.text.empty() ? "" : " x ", name, degree);
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    if (__builtin_mul_overflow(product.ranks, degree, &product.ranks) || product.ranks > kMost)
      throw ConfigError(fmt::format("mesh: {} is more than {} ranks", product.text, kMost));
  }
  return product;
}

}  // namespace

int wanted_ranks(const MeshKeys& mesh) {
  return static_cast<int>(product_of(mesh).ranks);
}

Degrees resolve_mesh(const MeshKeys& mesh, int world_size) {
  core::check(world_size >= 1, "resolve_mesh: a world of {} ranks", world_size);
  const Product product = product_of(mesh);
  const std::string world = fmt::format("{} rank{}", world_size, world_size == 1 ? "" : "s");
  const bool has_rest = mesh.replica == 0 || mesh.shard == 0;
  if (!has_rest && product.ranks != world_size)
    throw ConfigError(fmt::format("mesh: {} = {}, but there {} {}", product.text, product.ranks,
                                  world_size == 1 ? "is" : "are", world));
  if (world_size % product.ranks != 0)
    throw ConfigError(
        fmt::format("mesh: {} = {} does not divide the {}", product.text, product.ranks, world));
  if (mesh.replica == 0 && mesh.shard == 0)
    throw ConfigError("mesh: replica 0 and shard 0 cannot both be what is left of the world");

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
    throw ConfigError(error.what());  // here it is the configuration that is wrong, not the caller
  }
  return degrees;
}

}  // namespace trireme::config
