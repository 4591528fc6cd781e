#pragma once

#include <string>
#include <string_view>

namespace trireme::core {

/// Whether a person sees this stream directly. Under mpirun and srun a rank may have a terminal,
/// but the launcher collects its lines.
bool is_terminal(int fd);

/// Whether this stream shows colours: it is a terminal, or a launcher on a terminal passes its
/// lines on (TRIREME_COLOR=1); and NO_COLOR is not set and TERM is not "dumb".
bool shows_colour(int fd);

enum class Colour { Red, Yellow };

/// `text` in this colour if the stream shows colours.
std::string coloured(Colour colour, std::string_view text, int fd);

/// What to print before a line on a terminal, to overwrite a progress bar; elsewhere "".
std::string_view line_start(int fd);

}  // namespace trireme::core
