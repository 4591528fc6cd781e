#include "trireme/format/checksums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::format {

VerifiedFile::VerifiedFile(const std::string& path, FileInfo expected)
    : file_(File::open(path)), expected_(std::move(expected)) {
  const auto blocks = static_cast<int64_t>(expected_.checksums.size());
  if (expected_.block_bytes != kBlockBytes || blocks != num_blocks(expected_.bytes))
    throw CheckpointError(fmt::format("{}: {} checksums of blocks of {} bytes do not fit {} bytes",
                                      path, blocks, expected_.block_bytes, expected_.bytes));
  if (file_.bytes() != expected_.bytes)
    throw CheckpointError(fmt::format("{} has {} bytes, but the index says {}: it was {}", path,
                                      file_.bytes(), expected_.bytes,
                                      file_.bytes() < expected_.bytes ? "cut off" : "changed"));
  verified_.resize(expected_.checksums.size());
}

int64_t VerifiedFile::block_size(int64_t block) const {
  return std::min(kBlockBytes, expected_.bytes - block * kBlockBytes);
}

bool VerifiedFile::matches(int64_t block, const void* content) const {
  return core::hash128_hex(content, static_cast<size_t>(block_size(block))) ==
         expected_.checksums[static_cast<size_t>(block)];
}

void VerifiedFile::verify(int64_t block, const void* content, std::string_view what) {
  const auto i = static_cast<size_t>(block);
  if (verified_[i]) return;
  if (!matches(block, content))
    throw CheckpointError(fmt::format(
        "{} is damaged: block {} (bytes {} to {}) does not match its checksum; {} was wanted",
        path(), block, block * kBlockBytes, block * kBlockBytes + block_size(block) - 1, what));
  verified_[i] = true;
}

const char* VerifiedFile::load(int64_t block, std::string_view what) {
  if (in_scratch_ == block) return scratch_.data();
  in_scratch_ = -1;
  scratch_.resize(static_cast<size_t>(std::min(kBlockBytes, expected_.bytes)));
  file_.read(block * kBlockBytes, block_size(block), scratch_.data(), what);
  verify(block, scratch_.data(), what);
  in_scratch_ = block;
  return scratch_.data();
}

void VerifiedFile::read(int64_t offset, int64_t bytes, void* to, std::string_view what) {
  core::check(offset >= 0 && bytes >= 0 && bytes <= expected_.bytes - offset,
              "{}: {} bytes at {} were asked for, but it has {}", path(), bytes, offset,
              expected_.bytes);
  auto* place = static_cast<char*>(to);
  const int64_t end = offset + bytes;
  while (offset < end) {
    const int64_t block = offset / kBlockBytes, inside = offset - block * kBlockBytes;
    const int64_t part = std::min(end - offset, block_size(block) - inside);
    if (part == block_size(block) && in_scratch_ != block) {
      // One block at a time, so that it is hashed while it is in the cache.
      file_.read(offset, part, place, what);
      verify(block, place, what);
    } else {
      std::memcpy(place, load(block, what) + inside, static_cast<size_t>(part));
    }
    place += part;
    offset += part;
  }
}

std::vector<int64_t> VerifiedFile::damaged_blocks() {
  std::vector<int64_t> damaged;
  std::vector<char> content(static_cast<size_t>(std::min(kBlockBytes, expected_.bytes)));
  for (int64_t block = 0; block < num_blocks(expected_.bytes); ++block) {
    file_.read(block * kBlockBytes, block_size(block), content.data(), "its blocks");
    if (!matches(block, content.data())) damaged.push_back(block);
  }
  return damaged;
}

}  // namespace trireme::format
