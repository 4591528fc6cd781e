#include "trireme/core/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include "trireme/core/env.h"

namespace trireme::core {

bool is_terminal(int fd) {
  for (const char* rank : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (env(rank)) return false;
  return ::isatty(fd) == 1;
}

bool shows_colour(int fd) {
  if (!env("NO_COLOR").value_or("").empty() || env("TERM").value_or("") == "dumb") return false;
  return is_terminal(fd) || env("TRIREME_COLOR").value_or("") == "1";
}

std::string coloured(Colour colour, std::string_view text, int fd) {
  if (!shows_colour(fd)) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", colour == Colour::Red ? 31 : 33, text);
}

std::string_view line_start(int fd) {
  return is_terminal(fd) ? "\r\033[K" : "";
}

}  // namespace trireme::core
