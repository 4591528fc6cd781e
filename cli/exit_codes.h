#pragma once

namespace trireme::cli {

constexpr int kDifferent = 3;  ///< verify found a difference

}  // namespace trireme::cli
