#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "support/command.h"
#include "support/scratch.h"
#include "support/training.h"

namespace trireme::test {

/// Writes a text that people have written: the King James Bible of Debian's bible-kjv, or else the
/// documentation of this checkout. Returns the file.
inline std::string put_text(const Scratch& folder) {
  const std::string path = folder / "text.txt";
  const bool has_bible = ::access("/usr/bin/bible", X_OK) == 0;
  if (!has_bible)
    std::cerr << "no bible-kjv here (scripts/setup installs it); docs/ is the text instead\n";
  const std::string all = "cat " TRIREME_SOURCE_DIR "/docs/*.md";
  const CommandResult read =
      run_patiently({"/bin/sh", "-c", has_bible ? "bible -l0 gen1:1-rev22:21" : all});
  EXPECT_EQ(read.code, 0) << read.err;
  put_bytes(path, read.out);
  EXPECT_GT(read.out.size(), 100'000u);
  return path;
}

}  // namespace trireme::test
