#include "trireme/train/lines_file.h"

#include <cerrno>
#include <fstream>

#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::train {

namespace {

/// How many of the file's first bytes are whole lines of steps up to `step`.
int64_t bytes_to_keep(const std::string& path, int64_t step) {
  std::ifstream in(path, std::ios::binary);
  int64_t kept = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) break;
    if (json["step"].get<int64_t>() > step) break;
    kept += static_cast<int64_t>(line.size()) + 1;
  }
  return kept;
}

}  // namespace

LinesFile::LinesFile(std::string path, int64_t step)
    : path_(std::move(path)), file_(nullptr, std::fclose) {
  const int64_t kept = step > 0 ? bytes_to_keep(path_, step) : 0;
  file_.reset(std::fopen(path_.c_str(), kept > 0 ? "r+b" : "wb"));
  if (!file_ || (kept > 0 && (::ftruncate(::fileno(file_.get()), kept) != 0 ||
                              std::fseek(file_.get(), 0, SEEK_END) != 0)))
    throw Error(fmt::format("cannot write {}: {}", path_, core::errno_text(errno)));
}

void LinesFile::add(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), file_.get());
  std::fputc('\n', file_.get());
  // A full disk costs lines of the log, not the run.
  if (std::fflush(file_.get()) != 0) std::clearerr(file_.get());
}

}  // namespace trireme::train
