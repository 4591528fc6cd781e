#include "trireme/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstring>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::format {
namespace {

using test::bytes_of;
using test::put_bytes;
using test::random_bytes;
using test::Scratch;
using test::sentence_of;
using ::testing::HasSubstr;

std::string with_header(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// Writes the data in parts of `part` bytes.
FileInfo write(const std::string& path, const std::vector<Entry>& entries, const std::string& data,
               size_t part) {
  SafetensorsWriter writer(path, entries, {{"made by", "trireme"}});
  for (size_t at = 0; at < data.size(); at += part)
    writer.append(data.data() + at, static_cast<int64_t>(std::min(part, data.size() - at)));
  return writer.finish();
}

const std::vector<Entry> kThree = {{.name = "a", .dtype = "F32", .shape = {3, 5}},
                                   {.name = "none", .dtype = "I64", .shape = {0, 7}},
                                   {.name = "scalar", .dtype = "BF16", .shape = {}}};

TEST(Safetensors, GivesBackWhatWasWritten) {
  const Scratch scratch;
  const std::string path = scratch / "x.safetensors", data = random_bytes(62);
  write(path, kThree, data, 7);
  SafetensorsReader reader(path);
  ASSERT_EQ(reader.entries().size(), 3u);
  EXPECT_EQ(reader.metadata().at("made by"), "trireme");
  EXPECT_EQ(reader.entries()[0].begin % 64, 0);
  std::string got(62, '\0');
  reader.read("a", 0, 60, got.data());
  reader.read("scalar", 0, 2, got.data() + 60);
  EXPECT_EQ(got, data);
  reader.read("a", 11, 9, got.data());
  EXPECT_EQ(got.substr(0, 9), data.substr(11, 9));
  EXPECT_EQ(reader.find("none")->shape, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(reader.find("b"), nullptr);
  EXPECT_THROW(reader.read("b", 0, 1, got.data()), CheckpointError);
  EXPECT_THROW(reader.read("a", 60, 1, got.data()), MisuseError);
}

TEST(Safetensors, ChecksumsAreThoseOfTheFileHoweverItWasAppended) {
  const Scratch scratch;
  const int64_t bytes = 3 * kBlockBytes + 12345;
  const std::vector<Entry> entries = {{.name = "w", .dtype = "U8", .shape = {bytes}}};
  const std::string data = random_bytes(bytes), path = scratch / "x";
  for (const size_t part : {size_t{1000}, size_t{kBlockBytes}, size_t{kBlockBytes} * 2 + 3,
                            static_cast<size_t>(bytes)}) {
    const FileInfo info = write(path, entries, data, part);
    const std::string file = bytes_of(path);
    ASSERT_EQ(info.bytes, static_cast<int64_t>(file.size()));
    ASSERT_EQ(info.checksums.size(), 4u);
    for (size_t block = 0; block < 4; ++block) {
      const size_t begin = block * size_t{kBlockBytes};
      EXPECT_EQ(info.checksums[block],
                core::hash128_hex(file.data() + begin,
                                  std::min(size_t{kBlockBytes}, file.size() - begin)));
    }
    EXPECT_EQ(file.substr(file.size() - data.size()), data);
  }
}

TEST(Safetensors, WriterRefusesTooMuchTooLittleAndNonsense) {
  const Scratch scratch;
  SafetensorsWriter writer(scratch / "x", kThree);
  EXPECT_THROW(writer.append(random_bytes(63).data(), 63), MisuseError);
  EXPECT_THROW(writer.finish(), MisuseError);
  const auto make = [&](Entry entry) { SafetensorsWriter(scratch / "y", {entry, entry}); };
  EXPECT_THROW(make({.name = "a", .dtype = "F32", .shape = {1}}), MisuseError);  // twice
  EXPECT_THROW(make({.name = "a", .dtype = "F8", .shape = {1}}), MisuseError);
  EXPECT_THROW(make({.name = "a", .dtype = "F32", .shape = {-1}}), MisuseError);
  EXPECT_THROW(make({.name = "a", .dtype = "F32", .shape = {1L << 40, 1L << 40}}), MisuseError);
  EXPECT_THROW(SafetensorsWriter(scratch / "y", {{.name = "\xff", .dtype = "U8", .shape = {}}}),
               MisuseError);
}

TEST(Safetensors, AFullDiskIsAnErrorWithTheFileAndTheReason) {
  const std::string data = random_bytes(2 * kBlockBytes);
  const std::vector<Entry> entries = {{.name = "w", .dtype = "U8", .shape = {2 * kBlockBytes}}};
  const std::string message =
      sentence_of<CheckpointError>([&] { write("/dev/full", entries, data, 1 << 20); });
  EXPECT_THAT(message, HasSubstr("/dev/full"));
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_THROW(write("/nowhere/x", entries, data, 1 << 20), CheckpointError);
}

TEST(Safetensors, AFullFileSystemIsNoticedInTheMiddle) {
  const Scratch scratch;
  if (::mount("none", scratch.path().c_str(), "tmpfs", 0, "size=2m") != 0)
    GTEST_SKIP() << "needs root to mount a small tmpfs";
  const int64_t bytes = 8 * kBlockBytes;
  const std::string message = sentence_of<CheckpointError>([&] {
    write(scratch / "x", {{.name = "w", .dtype = "U8", .shape = {bytes}}}, random_bytes(bytes),
          1 << 20);
  });
  ::umount(scratch.path().c_str());
  EXPECT_THAT(message, HasSubstr(scratch / "x: No space left on device"));
}

TEST(Safetensors, PythonReadsTheFile) {
  // The venv of the checkout, where there is one: scripts/setup has put safetensors there.
  const std::string venv = TRIREME_SOURCE_DIR "/.venv/bin/python3";
  const std::string python = ::access(venv.c_str(), X_OK) == 0 ? venv : "python3";
  if (std::system((python + " -c 'import safetensors.numpy' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " has no safetensors and numpy: scripts/setup installs them";
  const Scratch scratch;
  const std::string path = scratch / "x.safetensors";
  std::string data;
  for (int i = 0; i < 6; ++i) {
    const float value = 1.5F * static_cast<float>(i);
    data.append(reinterpret_cast<const char*>(&value), 4);
  }
  const int64_t answer = -42;
  data.append(reinterpret_cast<const char*>(&answer), 8);
  write(
      path,
      {{.name = "w", .dtype = "F32", .shape = {2, 3}}, {.name = "n", .dtype = "I64", .shape = {}}},
      data, 5);
  const std::string script =
      "from safetensors import safe_open\n"
      "f = safe_open('" +
      path +
      "', 'np')\n"
      "assert f.metadata() == {'made by': 'trireme'}, f.metadata()\n"
      "assert f.get_tensor('w').tolist() == [[0, 1.5, 3], [4.5, 6, 7.5]]\n"
      "assert f.get_tensor('n') == -42\n"
      "import numpy, safetensors.numpy\n"
      "safetensors.numpy.save_file({'p': numpy.arange(6, dtype='uint8').reshape(2, 3)}, '" +
      path + ".py')\n";
  put_bytes(scratch / "check.py", script);
  ASSERT_EQ(std::system((python + " " + scratch / "check.py").c_str()), 0);
  SafetensorsReader theirs(path + ".py");
  std::string got(6, 'x');
  theirs.read("p", 0, 6, got.data());
  EXPECT_EQ(got, std::string("\0\1\2\3\4\5", 6));
}

TEST(SafetensorsDamage, EveryTruncationIsAnError) {
  const Scratch scratch;
  const std::string path = scratch / "x";
  write(path, kThree, random_bytes(62), 62);
  const std::string whole = bytes_of(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    put_bytes(path, whole.substr(0, length));
    EXPECT_THAT(sentence_of<CheckpointError>([&] { SafetensorsReader reader(path); }),
                HasSubstr(path));
  }
  put_bytes(path, whole + "x");
  EXPECT_THROW(SafetensorsReader reader(path), CheckpointError);
}

TEST(SafetensorsDamage, NoChangedHeaderByteCrashes) {
  const Scratch scratch;
  const std::string path = scratch / "x";
  write(path, kThree, random_bytes(62), 62);
  const std::string whole = bytes_of(path);
  for (size_t at = 0; at < whole.size() - 62; ++at)
    for (const int change : {1, 2, 16, 128, 255}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      put_bytes(path, changed);
      try {
        SafetensorsReader reader(path);
        for (const Entry& entry : reader.entries())
          ASSERT_LE(entry.begin + entry.bytes, static_cast<int64_t>(whole.size()));
      } catch (const CheckpointError&) {
      }
    }
}

struct Hostile {
  std::string header, data, says;
};

TEST(SafetensorsDamage, HostileHeadersAreRefusedByName) {
  const Scratch scratch;
  const std::string path = scratch / "x";
  const std::string max = "9223372036854775807";
  const std::vector<Hostile> cases = {
      {"", "", "JSON"},
      {"[]", "", "not a JSON object"},
      {"{\"w\":3}", "", "tensor 'w' is not a JSON object"},
      {R"({"w":{"shape":[1],"data_offsets":[0,1]}})", "x", "no 'dtype'"},
      {R"({"w":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", "x", "dtype Q4"},
      {R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x",
       "'shape' that is not a size"},
      {R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "x", "not a size"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "x", "not a range"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x", "not a range"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,1]}})", "x", "not take the 1 bytes"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "", "'w'"},
      {R"({"w":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", "x", "size"},
      {R"({"w":{"dtype":"U8","shape":[)" + max + R"(],"data_offsets":[0,)" + max + "]}}", "x",
       "cut off"},
      {R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "xyz", "tensor 'w' begins at byte 1 of the data, inside another"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy", "hole"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xy", "no tensor"},
      {R"({"__metadata__":{"a":1}})", "", "__metadata__"},
      {std::string(100'000, '['), "", "nested"},
      {"{\"w\":\"\xff\"}", "", "JSON"},
  };
  for (const Hostile& each : cases) {
    put_bytes(path, with_header(each.header, each.data));
    const std::string message =
        sentence_of<CheckpointError>([&] { SafetensorsReader reader(path); });
    EXPECT_THAT(message, HasSubstr(each.says)) << each.header.substr(0, 200);
    EXPECT_THAT(message, HasSubstr(path));
  }
  put_bytes(path, std::string(8, '\xff') + "{}");
  EXPECT_THROW(SafetensorsReader reader(path), CheckpointError);
  EXPECT_THROW(SafetensorsReader reader(scratch.path()), CheckpointError);
  EXPECT_THROW(SafetensorsReader reader(scratch / "none"), CheckpointError);
}

}  // namespace
}  // namespace trireme::format
