// The index of a Megatron data set:
//
// NAME.idx:  "MMIDIDX\0\0" | version u64 = 1 | dtype u8 | sequences n u64 | documents d u64
//            | lengths int32[n] | places in NAME.bin, in bytes, int64[n] | documents int64[d]
//            | (of several modalities: mode int8[n])
#include <array>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/format/token_stream.h"

namespace trireme::format {

namespace {

constexpr std::array<const char*, 9> kDtypeNames = {"",      "uint8",   "int8",    "int16", "int32",
                                                    "int64", "float64", "float32", "uint16"};

struct Header {
  TokenType type;
  int64_t sequences, documents;
  int64_t lengths_at() const { return kMegatronHeaderBytes; }
  int64_t places_at() const { return lengths_at() + 4 * sequences; }
  int64_t documents_at() const { return places_at() + 8 * sequences; }
  int64_t end() const { return documents_at() + 8 * documents; }
};

[[noreturn]] void refuse(const MappedFile& file, const std::string& sentence) {
  throw Error(fmt::format("{} {}", file.path(), sentence));
}

Header read_header(const MappedFile& index) {
  if (index.bytes() >= 8 && std::memcmp(index.data(), "TNTIDX\0\0", 8) == 0)
    refuse(index,
           "is a fairseq index (TNTIDX); make a new one with Megatron's "
           "preprocess_data.py");
  if (index.bytes() < kMegatronHeaderBytes)
    refuse(index,
           fmt::format("has {} bytes, less than the header of a Megatron index", index.bytes()));
  if (std::memcmp(index.data(), kMegatronMagic, sizeof kMegatronMagic) != 0)
    refuse(index, "does not begin with MMIDIDX: it is not a Megatron index");
  if (const auto version = index.at<uint64_t>(9); version != 1)
    refuse(index, fmt::format("has version {}; only version 1 can be read", version));
  const auto code = index.at<uint8_t>(17);
  if (code != 4 && code != 8)
    refuse(index, fmt::format("has tokens of {}; only uint16 and int32 can be read",
                              code > 0 && code < kDtypeNames.size()
                                  ? kDtypeNames[code]
                                  : fmt::format("the unknown type {}", code)));
  const auto sequences = index.at<uint64_t>(18), documents = index.at<uint64_t>(26);
  const auto most = static_cast<uint64_t>(index.bytes());
  Header header{code == 8 ? TokenType::U16 : TokenType::I32, 0, 0};
  if (sequences <= most && documents <= most) {
    header.sequences = static_cast<int64_t>(sequences);
    header.documents = static_cast<int64_t>(documents);
  }
  // A file of several modalities ends with one byte for each sequence.
  const bool fits =
      sequences <= most && documents <= most &&
      (index.bytes() == header.end() || index.bytes() == header.end() + header.sequences);
  if (!fits)
    refuse(index, fmt::format("has {} bytes, which does not fit {} sequences and {} documents: it "
                              "was cut off or changed",
                              index.bytes(), sequences, documents));
  return header;
}

void check_documents(const MappedFile& index, const Header& header) {
  int64_t previous = 0;
  for (int64_t i = 0; i < header.documents; ++i) {
    const auto first = index.at<int64_t>(header.documents_at() + 8 * i);
    if (first < previous || first > header.sequences)
      refuse(index,
             fmt::format("says that document {} begins at sequence {}, which must be {} to {}", i,
                         first, previous, header.sequences));
    previous = first;
  }
}

}  // namespace

TokenFile::Stream open_megatron(const std::string& bin, const std::string& idx) {
  const MappedFile index(idx);
  const Header header = read_header(index);
  check_documents(index, header);
  TokenFile::Stream stream{TokenKind::Megatron, MappedFile(bin), header.type, 0, {}};
  const int64_t each = token_bytes(header.type), bin_bytes = stream.file.bytes();
  int64_t next = -1;  // the byte after the last extent
  for (int64_t i = 0; i < header.sequences; ++i) {
    const int64_t length = index.at<int32_t>(header.lengths_at() + 4 * i);
    const auto place = index.at<int64_t>(header.places_at() + 8 * i);
    if (length < 0 || place < 0 || place > bin_bytes || length * each > bin_bytes - place)
      refuse(index,
             fmt::format("says that sequence {} has {} tokens at byte {} of {}, which has {} "
                         "bytes",
                         i, length, place, bin, bin_bytes));
    if (length == 0) continue;
    if (place != next) stream.extents.push_back({stream.size, place});
    next = place + length * each;
    if (__builtin_add_overflow(stream.size, length, &stream.size))
      refuse(index, "has more tokens than can be counted");
  }
  if (stream.size == 0) refuse(index, "has no tokens");
  return stream;
}

}  // namespace trireme::format
