// A promise that no mistake can break proves nothing. Each mistake here is put into the nodes on
// purpose, and must break the promise that it is about within 200 worlds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/scenario.h"

namespace trireme::sim {
namespace {

using ps::Plant;

struct Planted {
  const char* name;
  Plant plant;
  Promise breaks;
};

void PrintTo(const Planted& planted, std::ostream* out) {
  *out << planted.name;
}

class PlantedBug : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsFoundWithinTwoHundredWorlds) {
  constexpr uint64_t kSeeds = 200;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = simulate(make_scenario(seed, GetParam().plant));
    const auto found = std::ranges::find(outcome.breaches, GetParam().breaks, &Breach::promise);
    if (found == outcome.breaches.end()) continue;
    fmt::print("{}: seed {} breaks '{}': {}\n", GetParam().name, seed, name_of(found->promise),
               found->sentence);
    return;
  }
  FAIL() << GetParam().name << " broke nothing in " << kSeeds << " worlds";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBug,
    testing::Values(Planted{"AckBeforeChain", Plant::AckBeforeChain, Promise::Kept},
                    Planted{"ForgetApplied", Plant::ForgetApplied, Promise::Once},
                    Planted{"SameEpoch", Plant::SameEpoch, Promise::Owner},
                    Planted{"DirtyRead", Plant::DirtyRead, Promise::Linear},
                    Planted{"AnyReply", Plant::AnyReply, Promise::Monotonic},
                    Planted{"ReadBeforeWrite", Plant::ReadBeforeWrite, Promise::OwnWrites},
                    Planted{"LooseBound", Plant::LooseBound, Promise::Bound},
                    Planted{"DoneTooEarly", Plant::DoneTooEarly, Promise::Work},
                    Planted{"SendBeforeSync", Plant::SendBeforeSync, Promise::Work},
                    Planted{"ApplyEarly", Plant::ApplyEarly, Promise::Exact}),
    [](const auto& planted) { return planted.param.name; });

}  // namespace
}  // namespace trireme::sim
