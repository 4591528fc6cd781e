#include "trireme/format/tokens.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/file.h"
#include "trireme/format/token_stream.h"

namespace trireme::format {

namespace {

/// NAME of NAME.bin and NAME.idx.
std::string without_suffix(const std::string& path) {
  const bool known = path.ends_with(".bin") || path.ends_with(".idx");
  return known ? path.substr(0, path.size() - 4) : path;
}

TokenFile::Stream open_llm_c(MappedFile file) {
  const std::string path = file.path();
  if (file.bytes() < kLlmCHeaderBytes)
    throw Error(
        fmt::format("{} has {} bytes, less than the header of an llm.c file", path, file.bytes()));
  const bool wide = file.at<int32_t>(0) == kLlmCWideMagic;
  const auto version = file.at<int32_t>(4), count = file.at<int32_t>(8);
  if (version != (wide ? 7 : 1))
    throw Error(fmt::format("{} is an llm.c file of version {}; only version {} can be read", path,
                            version, wide ? 7 : 1));
  if (count <= 0) throw Error(fmt::format("{} says that it has {} tokens", path, count));
  const TokenType type = wide ? TokenType::U32 : TokenType::U16;
  const int64_t wanted = kLlmCHeaderBytes + token_bytes(type) * count;
  if (file.bytes() != wanted)
    throw Error(
        fmt::format("{} says that it has {} tokens, which takes {} bytes, but it has {}: "
                    "it was cut off or changed",
                    path, count, wanted, file.bytes()));
  return {TokenKind::LlmC, std::move(file), type, count, {{0, kLlmCHeaderBytes}}};
}

/// A text that was named by mistake: any two of its letters are a token, too.
bool is_text(const MappedFile& file) {
  for (const char* suffix : {".toml", ".json", ".jsonl", ".txt", ".md", ".csv"})
    if (file.path().ends_with(suffix)) return true;
  constexpr int64_t kLeast = 64, kMost = 4096;
  const std::string_view start(file.data(), static_cast<size_t>(std::min(file.bytes(), kMost)));
  return file.bytes() >= kLeast && std::ranges::all_of(start, [](const unsigned char c) {
           return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t';
         });
}

TokenFile::Stream open_stream(const std::string& path) {
  const std::string name = without_suffix(path), idx = name + ".idx", bin = name + ".bin";
  const bool stands_alone = name == path && is_file(path);  // NAME itself, without .bin or .idx
  if (path.ends_with(".idx") || (!stands_alone && is_file(idx))) return open_megatron(bin, idx);
  MappedFile file(path);
  const int32_t magic = file.bytes() >= 4 ? file.at<int32_t>(0) : 0;
  if (magic == kLlmCMagic || magic == kLlmCWideMagic) return open_llm_c(std::move(file));
  if (is_text(file))
    throw Error(fmt::format("{} is a text, not a file of tokens, which a tokenizer writes", path));
  if (file.bytes() % 2 != 0)
    throw Error(
        fmt::format("{} has {} bytes: raw tokens are 2 bytes each, so it was cut off, or "
                    "is not a file of tokens",
                    path, file.bytes()));
  const int64_t count = file.bytes() / 2;
  return {TokenKind::Raw, std::move(file), TokenType::U16, count, {{0, 0}}};
}

template <class T>
void widen(const MappedFile& file, int64_t offset, int64_t count, int64_t* to) {
  const char* from = file.data() + offset;
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = token;
  }
}

}  // namespace

std::string_view to_string(TokenKind kind) {
  switch (kind) {
    case TokenKind::Raw: return "raw uint16";
    case TokenKind::LlmC: return "llm.c";
    case TokenKind::Megatron: return "Megatron";
  }
  return "";
}

TokenFile::TokenFile(const std::string& path)
    : stream_(std::make_unique<const Stream>(open_stream(path))) {}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

TokenKind TokenFile::kind() const {
  return stream_->kind;
}

const std::string& TokenFile::path() const {
  return stream_->file.path();
}

int64_t TokenFile::size() const {
  return stream_->size;
}

void TokenFile::read(int64_t begin, int64_t count, int64_t* to) const {
  const Stream& stream = *stream_;
  core::check(begin >= 0 && count >= 0 && begin <= stream.size && count <= stream.size - begin,
              "{}: tokens [{}, {} + {}) were asked for, but it has {}", path(), begin, begin, count,
              stream.size);
  stream.file.check_whole();
  auto next = std::ranges::upper_bound(stream.extents, begin, {}, &Stream::Extent::begin);
  for (int64_t done = 0; done < count; ++next) {
    const Stream::Extent extent = *std::prev(next);
    const int64_t end = next == stream.extents.end() ? stream.size : next->begin;
    const int64_t at = begin + done, now = std::min(count - done, end - at);
    const int64_t offset = extent.offset + (at - extent.begin) * token_bytes(stream.type);
    if (stream.type == TokenType::U16) widen<uint16_t>(stream.file, offset, now, to + done);
    if (stream.type == TokenType::U32) widen<uint32_t>(stream.file, offset, now, to + done);
    if (stream.type == TokenType::I32) {
      widen<int32_t>(stream.file, offset, now, to + done);
      const auto* wrong = std::find_if(to + done, to + done + now, [](int64_t t) { return t < 0; });
      if (wrong != to + done + now)
        throw Error(fmt::format("{}: token {} is {}", path(), begin + (wrong - to), *wrong));
    }
    done += now;
  }
}

std::string TokenFile::identity() const {
  constexpr int64_t kBlocks = 16, kBlock = 1 << 15;
  const bool whole = size() <= kBlocks * kBlock;
  std::string hashes;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(size(), kBlock)));
  for (int64_t block = 0; block < kBlocks; ++block) {
    const int64_t begin = whole ? block * kBlock : (size() - kBlock) / (kBlocks - 1) * block;
    const int64_t from = !whole && block + 1 == kBlocks ? size() - kBlock : begin;
    const int64_t count = std::min(kBlock, size() - from);
    if (count <= 0) break;
    read(from, count, tokens.data());
    hashes += fmt::format(
        "{:016x}", core::hash64(tokens.data(), sizeof(int64_t) * static_cast<size_t>(count)));
  }
  return fmt::format("{} tokens, hash {:016x}", size(), core::hash64(hashes));
}

int64_t TokenFile::largest() const {
  constexpr int64_t kPart = 1 << 16;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(size(), kPart)));
  int64_t most = 0;
  for (int64_t begin = 0; begin < size(); begin += kPart) {
    const int64_t count = std::min(kPart, size() - begin);
    read(begin, count, tokens.data());
    most = std::max(most, *std::max_element(tokens.data(), tokens.data() + count));
  }
  return most;
}

namespace {

/// A file that is written as PATH.tmp and renamed to PATH when it is complete. A device is written
/// directly.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path),
        beside_(is_device(path) ? path : path + ".tmp"),
        file_(File::create(beside_)) {}
  ~NewFile() {
    if (!placed_ && beside_ != path_) ::unlink(beside_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* from, int64_t bytes) { file_.write(from, bytes); }
  void finish() {
    file_.finish();
    if (beside_ != path_ && ::rename(beside_.c_str(), path_.c_str()) != 0)
      throw CheckpointError(fmt::format("cannot rename {}: {}", beside_, core::errno_text(errno)));
    placed_ = true;
  }

 private:
  static bool is_device(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  }

  std::string path_, beside_;
  File file_;
  bool placed_ = false;
};

}  // namespace

void write_tokens(const std::string& path, TokenKind kind, std::span<const uint16_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  core::check(count > 0, "{}: there are no tokens to write", path);
  core::check(kind == TokenKind::Raw || count <= std::numeric_limits<int32_t>::max(),
              "{}: {} tokens are more than {} can count in one piece", path, count,
              to_string(kind));
  const bool megatron = kind == TokenKind::Megatron;
  NewFile data(megatron ? without_suffix(path) + ".bin" : path);
  if (kind == TokenKind::LlmC) {
    int32_t header[256] = {kLlmCMagic, 1, static_cast<int32_t>(count)};
    data.write(header, sizeof header);
  }
  data.write(tokens.data(), 2 * count);
  if (!megatron) return data.finish();
  std::string index(kMegatronMagic, sizeof kMegatronMagic);
  const auto add = [&](auto number) {
    index.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  add(uint64_t{1});
  add(uint8_t{8});   // uint16
  add(uint64_t{1});  // sequences
  add(uint64_t{2});  // borders of documents
  add(static_cast<int32_t>(count));
  add(int64_t{0});
  add(int64_t{0});
  add(int64_t{1});
  NewFile borders(without_suffix(path) + ".idx");
  borders.write(index.data(), static_cast<int64_t>(index.size()));
  // An old index does not fit the new tokens.
  ::unlink((without_suffix(path) + ".idx").c_str());
  data.finish();
  borders.finish();
}

}  // namespace trireme::format
