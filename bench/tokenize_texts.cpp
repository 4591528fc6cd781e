// tokenize_texts TOKENIZER: answers questions on stdin, for tests and for bench/tokenize, which ask
// the Rust library the same.
//
//   question  | repeat u32 | bytes u32 | text |      repeat 0: decode, the text is int32 ids
//   answer    | seconds f64, the median of the repetitions | count u32 | int32 ids, or decoded
//   bytes |
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

#include "trireme/format/tokenizer.h"

namespace {

using trireme::format::Around;
using trireme::format::Tokenizer;

bool read_all(void* to, size_t bytes) {
  return std::fread(to, 1, bytes, stdin) == bytes;
}

void write_all(const void* from, size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) throw std::runtime_error("nobody listens");
}

void answer(double seconds, const void* from, size_t count, size_t each) {
  const auto number = static_cast<uint32_t>(count);
  write_all(&seconds, sizeof seconds);
  write_all(&number, sizeof number);
  write_all(from, count * each);
  std::fflush(stdout);
}

void encode(const Tokenizer& tokenizer, const std::string& text, uint32_t repeat) {
  std::vector<int32_t> ids;
  std::vector<double> seconds;
  for (uint32_t i = 0; i < repeat; ++i) {
    ids.clear();
    const auto began = std::chrono::steady_clock::now();
    tokenizer.encode(text, Around::Template, ids);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    seconds.push_back(took.count());
  }
  std::ranges::sort(seconds);
  answer(seconds[seconds.size() / 2], ids.data(), ids.size(), sizeof(int32_t));
}

void decode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids(text.size() / sizeof(int32_t));
  std::memcpy(ids.data(), text.data(), ids.size() * sizeof(int32_t));
  const std::string bytes = tokenizer.decode(ids);
  answer(0, bytes.data(), bytes.size(), 1);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("use tokenize_texts TOKENIZER");
  const auto tokenizer = trireme::format::load_tokenizer(argv[1]);
  for (uint32_t head[2]; read_all(head, sizeof head);) {
    std::string text(head[1], '\0');
    if (!read_all(text.data(), text.size())) return 1;
    if (head[0] == 0)
      decode(*tokenizer, text);
    else
      encode(*tokenizer, text, head[0]);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tokenize_texts: %s\n", error.what());
  return 1;
}
