// Any piece of our tensors, put together from theirs; and the numbers that conversions give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "support/checkpoints.h"
#include "support/hf_model.h"
#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/exchange/hf_weights.h"
#include "trireme/exchange/import.h"
#include "trireme/exchange/rows.h"
#include "trireme/exchange/transpose.h"
#include "trireme/format/cast.h"
#include "trireme/format/load.h"

namespace trireme::exchange {
namespace {

using test::Scratch;
using ::testing::HasSubstr;

/// A random box of the tensor, or a flat range of one.
Piece random_piece(const MappedTensor& tensor, std::mt19937& random) {
  const auto pick = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  Piece piece{tensor.name, tensor.shape, {}, {}, 0, 1};
  for (const int64_t size : tensor.shape) {
    piece.offset.push_back(pick(size - 1));
    piece.shape.push_back(1 + pick(size - piece.offset.back() - 1));
    piece.count *= piece.shape.back();
  }
  if (random() % 2 == 0) return piece;
  piece.begin = pick(piece.count - 1);
  piece.count = 1 + pick(piece.count - piece.begin - 1);
  return piece;
}

TEST(HfWeights, GivesAnyPieceAsTheImportHasIt) {
  const Scratch scratch;
  test::hf_gpt2("BF16").write(scratch / "gpt", 3);
  test::hf_llama("F32", {.kv_heads = 1, .tie = false}, true).write(scratch / "llama");
  std::mt19937 random(5);
  for (const std::string name : {"gpt", "llama"}) {
    import_folder(scratch / name, scratch / name + "-ours", {.vocab = 37});
    format::Checkpoint imported(scratch / name + "-ours");
    const Settings settings = read_settings(scratch / name);
    config::Model model = model_of(family_of(settings), settings);
    model.vocab = 37;
    HfWeights weights(scratch / name, model);
    for (int i = 0; i < 3000; ++i) {
      const MappedTensor& tensor = weights.tensors()[random() % weights.tensors().size()];
      const Piece piece = random_piece(tensor, random);
      const std::string dtype = weights.tensor(tensor.name)->dtype;
      const auto bytes = static_cast<std::size_t>(piece.count * format::dtype_bytes(dtype));
      std::string direct(bytes, '\0'), by_import(bytes, '\1');
      weights.read(piece, dtype, direct.data());
      imported.read(piece, dtype, by_import.data());
      ASSERT_TRUE(direct == by_import) << tensor.name << " " << format::format_shape(piece.offset)
                                       << format::format_shape(piece.shape) << piece.begin << "+"
                                       << piece.count;
    }
  }
}

TEST(HfWeights, DealsRowsOutForPairsOfNeighbours) {
  const Scratch scratch;
  const auto hf = test::hf_llama("F32", {.hidden = 24, .heads = 2, .kv_heads = 2});
  hf.write(scratch / "hf");
  const Settings settings = read_settings(scratch / "hf");
  config::Model model = model_of(family_of(settings), settings);
  model.rope_pairs = config::RopePairs::Neighbours;
  HfWeights weights(scratch / "hf", model);
  std::string qkv(3 * 24 * 24 * 4, '\0');
  weights.read(format::whole_piece("layers.1.attn.qkv.weight", {72, 24}), "F32", qkv.data());
  const auto row = [](const std::string& bytes, std::size_t at) {
    return bytes.substr(at * 24 * 4, 24 * 4);
  };
  const std::string& k = hf.tensors.at("model.layers.1.self_attn.k_proj.weight").bytes;
  const std::string& v = hf.tensors.at("model.layers.1.self_attn.v_proj.weight").bytes;
  for (std::size_t head = 0; head < 2; ++head)
    for (std::size_t i = 0; i < 12; ++i) {
      // x[2 i] and x[2 i + 1] here are x[i] and x[i + 6] there.
      EXPECT_EQ(row(qkv, 24 + head * 12 + i), row(k, head * 12 + i % 2 * 6 + i / 2));
      EXPECT_EQ(row(qkv, 48 + head * 12 + i), row(v, head * 12 + i));
    }
}

TEST(HfWeights, PadsWithTheMeanOfAllRows) {
  MeanOfRows mean("F32", 3);
  const float rows[] = {1, 2, 3, 4, 8, 0};
  mean.add(rows, 1);
  mean.add(rows + 3, 1);
  const auto bytes = mean.mean();
  float values[3];
  ASSERT_EQ(bytes.size(), sizeof values);
  std::memcpy(values, bytes.data(), sizeof values);
  EXPECT_THAT(values, testing::ElementsAre(2.5F, 5, 1.5F));
}

TEST(HfWeights, MayMixDtypesAndThenTakesTheOneThatHoldsAll) {
  const Scratch scratch;
  auto hf = test::hf_llama("BF16", {});
  hf.add("model.layers.0.self_attn.v_proj.weight", "F16", {12, 12});
  hf.write(scratch / "hf");
  const Settings settings = read_settings(scratch / "hf");
  HfWeights weights(scratch / "hf", model_of(family_of(settings), settings));
  EXPECT_EQ(weights.tensor("layers.0.attn.qkv.weight")->dtype, "F32");
  EXPECT_EQ(weights.tensor("layers.1.attn.qkv.weight")->dtype, "BF16");
  std::string qkv(36 * 12 * 4, '\0'), v(12 * 12 * 4, '\0');
  weights.read(format::whole_piece("layers.0.attn.qkv.weight", {36, 12}), "F32", qkv.data());
  format::cast("F16", hf.tensors.at("model.layers.0.self_attn.v_proj.weight").bytes.data(), "F32",
               v.data(), 144);
  EXPECT_TRUE(qkv.substr(24 * 12 * 4) == v);
}

TEST(Transpose, TurnsAnyMatrixOver) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 50}, {17, 33}, {64, 16}}) {
    std::vector<uint16_t> from(static_cast<std::size_t>(rows * columns)), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i);
    transpose(from.data(), rows, columns, 2, to.data());
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        ASSERT_EQ(to[static_cast<std::size_t>(c * rows + r)], r * columns + c);
  }
}

template <class From, class To>
To cast_one(std::string_view from_dtype, From value, std::string_view to_dtype) {
  To result;
  format::cast(from_dtype, &value, to_dtype, &result, 1);
  return result;
}

/// Rounding by search: the nearest of all finite numbers of 16 bits, the even one where two are
/// equally near.
uint16_t nearest(std::string_view dtype, double value) {
  uint16_t best = 0;
  long double best_apart = HUGE_VALL;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto number = format::decode(dtype, std::as_bytes(std::span(&half, 1)))[0];
    if (!std::isfinite(number) || std::signbit(number) != std::signbit(value)) continue;
    const long double apart = std::fabs(number - static_cast<long double>(value));
    if (apart < best_apart || (apart == best_apart && half % 2 == 0)) {
      best = half;
      best_apart = apart;
    }
  }
  return best;
}

TEST(Cast, RoundsToTheNearestOf16Bits) {
  std::mt19937 random(3);
  for (const std::string dtype : {"F16", "BF16"}) {
    for (int i = 0; i < 60; ++i) {
      const double value = std::ldexp(std::uniform_real_distribution(-1.0, 1.0)(random),
                                      static_cast<int>(random() % 40) - 26);
      EXPECT_EQ((cast_one<double, uint16_t>("F64", value, dtype)), nearest(dtype, value)) << value;
      const auto single = static_cast<float>(value);
      EXPECT_EQ((cast_one<float, uint16_t>("F32", single, dtype)), nearest(dtype, single));
    }
  }
  // Just above the middle of two: rounding by way of float32 would lose that.
  EXPECT_EQ((cast_one<double, uint16_t>("F64", 1 + 0x1p-8 + 0x1p-40, "BF16")), 0x3F81);
  EXPECT_EQ((cast_one<double, uint16_t>("F64", 1 + 0x1p-11 + 0x1p-40, "F16")), 0x3C01);
  EXPECT_EQ((cast_one<double, uint16_t>("F64", 1 + 0x1p-8, "BF16")), 0x3F80) << "ties to even";
  EXPECT_EQ((cast_one<float, uint16_t>("F32", 65520, "F16")), 0x7C00) << "too large";
  EXPECT_EQ((cast_one<float, uint16_t>("F32", 65519, "F16")), 0x7BFF);
}

TEST(Cast, KeepsEveryNumberOf16BitsThereAndBack) {
  for (const std::string dtype : {"F16", "BF16"})
    for (const std::string wide : {"F32", "F64"})
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<uint16_t>(bits);
        double between = 0;
        uint16_t back = 0;
        format::cast(dtype, &half, wide, &between, 1);
        format::cast(wide, &between, dtype, &back, 1);
        const auto number = format::decode(dtype, std::as_bytes(std::span(&half, 1)))[0];
        if (std::isnan(number))
          ASSERT_TRUE(std::isnan(format::decode(dtype, std::as_bytes(std::span(&back, 1)))[0]));
        else
          ASSERT_EQ(back, half) << dtype << " " << wide;
      }
}

}  // namespace
}  // namespace trireme::exchange
