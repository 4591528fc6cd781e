#include "trireme/format/images/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::format {

struct GzipReader::Handle {
  gzFile file = nullptr;
  ~Handle() { gzclose(file); }
};

GzipReader::GzipReader(const std::string& path) : path_(path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr)
    throw Error(fmt::format("cannot open {}: {}", path, core::errno_text(errno)));
  handle_ = std::make_unique<Handle>();
  handle_->file = file;
}

GzipReader::~GzipReader() = default;

void GzipReader::read(int64_t count, std::string& to) {
  constexpr int64_t kPart = 1 << 20;  // a header may lie about how much follows
  while (count > 0) {
    const int64_t part = std::min(count, kPart);
    const size_t before = to.size();
    to.resize(before + static_cast<size_t>(part));
    const int got = gzread(handle_->file, to.data() + before, static_cast<unsigned>(part));
    to.resize(before + static_cast<size_t>(std::max(0, got)));
    int code = Z_OK;
    const char* reason = gzerror(handle_->file, &code);
    if (code == Z_BUF_ERROR)
      throw Error(fmt::format("{} was cut short: the compressed data ends too early", path_));
    if (got < 0 || code != Z_OK)
      throw Error(fmt::format("{} is a damaged .gz file: {}", path_,
                              code == Z_ERRNO ? core::errno_text(errno) : std::string(reason)));
    if (got == 0) return;
    count -= got;
  }
}

}  // namespace trireme::format
