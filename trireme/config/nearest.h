#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace trireme::config {

/// How many letters to insert, delete, change or swap with a neighbour to turn one into the other.
int edit_distance(std::string_view from, std::string_view to);

/// How far `written` is from a known name; nothing if it is too far. Near are a few typing errors
/// ("heds", "heads"), a word of the other ("num_layers", "layers") and its initials
/// ("learning_rate", "lr").
std::optional<int> nearness(std::string_view written, std::string_view known);

/// The nearest of the known names, the first of several; nothing if all are too far.
std::optional<std::string_view> nearest(std::string_view written,
                                        std::span<const std::string_view> known);

}  // namespace trireme::config
