// Runs of `trireme train` whose losses are held against each other.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "support/training.h"
#include "trireme/core/json.h"

namespace trireme::test {

constexpr double kSame = 1e-12;  // of a loss, relative, in float64

inline CommandResult must(std::vector<std::string> argv, int code = 0) {
  auto result = run_command(std::move(argv), {.deadline = kPatience});
  EXPECT_EQ(result.code, code) << result.out << result.err;
  return result;
}

inline void expect_same_curve(const std::vector<double>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(std::abs(got[i] - wanted[i]), kSame * wanted[i]) << "step " << i + 1;
}

/// The memory that `trireme train --check` foretells, by the bytes of tensors that a run has.
inline double foretold_by_measured(const std::string& config,
                                   const std::vector<std::string>& keys) {
  std::vector<std::string> bench = {kTrireme, "bench", "train", config},
                           check = {kTrireme, "train", config, "--check"};
  bench.insert(bench.end(), keys.begin(), keys.end());
  check.insert(check.end(), keys.begin(), keys.end());
  const auto measured = core::parse_json(must(bench).out, "bench").at("tensor_mib").get<double>();
  const std::string told = must(check).out;
  const std::string together = told.substr(told.find("  together") + 10, 30);
  EXPECT_NE(together.find("MiB"), together.npos) << told;
  return std::stod(together) / measured;
}

inline const std::vector<std::string> kInDouble = {"precision.compute=float64",
                                                   "precision.reduce=float64", "model.dropout=0.1",
                                                   "model.heads=4", "model.kv_heads=2"};

inline std::vector<std::string> with(std::vector<std::string> all,
                                     const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace trireme::test
