#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::nn {

/// How a layer is cut over the ranks of the tensor axis.
///
///                 weight of a Linear   input                  output
///   Whole         whole                whole                  whole
///   Column        by output features   whole (entered)        features are cut
///   Row           by input features    features are cut       whole (left)
///   Vocabulary    an Embedding's or a Head's, by rows: tokens or classes
///   Positions     whole                a part of the positions, under sequence parallelism
///   Inside        whole                features are cut       features are cut
///   Expert        [experts, ...]: each rank of the expert axis has some of the experts, and each
///                 rank of the tensor axis a part of these, as a Column and the Row after it
///
/// A Column and the Row after it cost one `enter` and one `leave`, if the layers between them work
/// on single features (Shoeybi et al. 2019). Inside is for a layer between them that has weights
/// and works on whole heads, such as a norm of each head.
enum class Style : uint8_t { Whole, Column, Row, Vocabulary, Positions, Inside, Expert };

constexpr std::string_view to_string(Style style) {
  constexpr std::array<std::string_view, 7> kNames = {"whole",     "column", "row",   "vocabulary",
                                                      "positions", "inside", "expert"};
  return kNames[static_cast<std::size_t>(style)];
}

}  // namespace trireme::nn
