#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// Text for XML; what XML cannot hold becomes a question mark.
std::string xml_escaped(const std::string& text);

/// 1, 2 or 5 times a power of ten, at least `least`.
double nice_step(double least);

/// Multiples of a nice step inside [low, high], at most `most` of them.
std::vector<double> nice_ticks(double low, double high, int most);

/// "0.001", "3e-05", "1.5k", "20M": a number beside an axis.
std::string tick_text(double value);

/// COLUMNS, or the width of the terminal; 0 where there is none.
int terminal_columns();

}  // namespace trireme::cli
