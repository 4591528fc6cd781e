#pragma once

#include <string>
#include <string_view>

namespace trireme::core {

/// Whether a person looks at this stream. Under mpirun and srun a rank has a terminal of its own
/// that nobody looks at: its lines are collected.
bool is_terminal(int fd);

/// Whether this stream shows colours: it is a terminal, or a launcher that has one passes its lines
/// on (TRIREME_COLOR=1); and neither NO_COLOR is set nor TERM "dumb".
bool shows_colour(int fd);

enum class Colour { Red, Yellow };

/// `text` in this colour, where the stream shows colours.
std::string coloured(Colour colour, std::string_view text, int fd);

/// What to print before a line of its own on a terminal, where a progress bar may stand; else "".
std::string_view line_start(int fd);

}  // namespace trireme::core
